"""Proof: what a module's own code computes, whatever its tensors hold and however large they are.

The code runs on symbols, in training and in evaluation. If it returns the weighted sum of operations, zeros,
or what an operation's layers return, that holds as long as what it reads has its values.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from nxcore.nas.reading import Reads, Unclear
from nxcore.nas.run import Run
from nxcore.nas.symbols import Form, Vector

ANOTHER = "it is not the weighted sum of its operations"

IMAGE = ("x",)


def sums(module: nn.Module, holder: nn.Module, length: int, reads: Reads, *, listed: bool = False) -> None:
    """Show that a mixed operation returns the weighted sum of its operations, which ``holder`` has.

    Its ``forward`` takes an image and weights, so many as ``length``: a vector, or a list if ``listed``. The
    first ones are the operations'. ``reads`` gets what its code reads. ``Unclear`` is raised if it may do
    more.
    """
    own = dict.fromkeys(holder.children())
    weights = [("weight", i) for i in range(length)]
    path = next(path for path, m in module.named_modules() if m is holder)
    places = [(*path.split("."), name) for name, _ in holder.named_children()]
    outputs = [("call", place, IMAGE) for place in places]
    wanted = {("mul", *pair) for w, y in zip(weights, outputs, strict=False) for pair in ((w, y), (y, w))}

    def given(run: Run) -> Sequence[Any]:
        return [run.made(IMAGE), [*map(run.made, weights)] if listed else Vector(run, weights)]

    for run, form in _both(module, own.__contains__, given, reads):
        terms = _terms(form)
        if len(terms) != len(places) or len({*terms}) < len(terms) or not wanted.issuperset(terms):
            raise Unclear("its code adds up something else")
        if run.calls != places:
            raise Unclear("its code calls them in another order")


def zeros(op: nn.Module) -> Reads | None:
    """Return what an operation without tensors reads, if it returns zeros; None if it may not."""
    if type(op).__module__.startswith(("torch.", "nxcore.nn.")):
        return None
    if any(True for _ in (*op.parameters(), *op.buffers(), *op.children())):
        return None
    reads = Reads()
    try:
        runs = _both(op, lambda _: False, lambda run: [run.made(IMAGE)], reads)
        return reads if all(form == ("zeros",) for _, form in runs) else None
    except Unclear:
        return None


def layers(op: nn.Module, held: Sequence[nn.Module], wanted: Form, reads: Reads) -> None:
    """Show that an operation computes a form, with the numbers of its layers, ``held``, as places.

    ``reads`` gets what its code reads. ``Unclear`` is raised if it may compute or do anything else.
    """
    own = {id(layer): i for i, layer in enumerate(held)}
    places = {tuple(name.split(".")): own[id(m)] for name, m in op.named_modules() if id(m) in own}
    for run, form in _both(op, lambda m: id(m) in own, lambda run: [run.made(IMAGE)], reads):
        if _numbered(form, places) != wanted or [places[p] for p in run.calls] != [*range(len(held))]:
            raise Unclear("its code computes something else than its layers")


def _both(
    module: nn.Module, leaves: Callable[[Any], bool], given: Callable[[Run], Sequence[Any]], reads: Reads
) -> Iterator[tuple[Run, Form]]:
    """Yield a run in training and one in evaluation, with their forms."""
    for training in (True, False):
        run = Run(module, leaves, reads, training=training)
        yield run, run.of(given)


def _terms(form: Form) -> list[Form]:
    """Return what a form adds up."""
    return [*_terms(form[1]), *_terms(form[2])] if form[0] == "add" else [form]


def _numbered(form: Form, places: dict[Any, int]) -> Form:
    """Return a form with the numbers of modules in place of their names."""
    if type(form) is not tuple:
        return form
    if form[:1] == ("call",):
        return "call", places.get(form[1]), _numbered(form[2], places)
    return tuple(_numbered(part, places) for part in form)
