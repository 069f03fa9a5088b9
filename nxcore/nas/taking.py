"""Taking: whether a module that weights and adds up outputs of its lists may do that by one operator.

The first call shows which of its lists run several operations on one tensor. At a later call in training, a
copy runs both ways on a part of the arguments. If results and gradients are the same, the module is taken; if
not, it becomes what it was.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from nxcore.errors import FOREIGN
from nxcore.graphs.buffers import untouched
from nxcore.graphs.structure import structure
from nxcore.measure.collection import unprofiled
from nxcore.nas import group, shared_pools
from nxcore.nas.audit import Audit, Count
from nxcore.nas.comparison import aside, difference, part, twin_of, usual
from nxcore.nas.lists import WRITES, ZEROS, Scope, lists_of, unwatched, watched, within, zeros_of
from nxcore.nas.reading import Reads
from nxcore.nas.recording import Recording
from nxcore.nas.watch import AUDIT, LEFT, PART, Watch, before
from nxcore.nn import Part, Swap
from nxcore.nn.exchange import PATCHED, become

TAKING = "_nxcore_taking"
"""The attribute of a module whose lists may be taken."""

IMAGES = 2
"""The most images of a trial."""

CASES = (("own", True), ("negative", False), ("one-hot", True), ("zero", False), ("tiny", True))
"""The arguments and the mode of each trial call."""


class Taking:
    """Calls a module with lists of operations, and takes it or leaves it.

    Parameters
    ----------
    name : str
        The module's name in the model.
    swap : Swap
        The report of the patch, which is kept up to date.
    graphs : bool
        Whether calls in training are replayed once the module is taken.
    trials : dict, optional
        Structure and arguments -> what a trial found: modules of one structure share it.
    """

    def __init__(self, name: str, swap: Swap, *, graphs: bool, trials: dict[Any, Any] | None = None) -> None:
        self.name, self.graphs, self._swap = name, graphs, swap
        self.taken = False
        self._shared: list[nn.Module] | None = None
        self._trials = {} if trials is None else trials
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> Taking:  # for another module
        other = Taking(self.name, Swap(), graphs=self.graphs)
        other.taken = self.taken
        return other

    def __reduce__(self) -> Any:
        return functools.partial(Taking, graphs=self.graphs), (self.name, Swap())

    @property
    def state(self) -> str:
        """The reason why no call is replayed yet."""
        return "runs: no call yet" if self._shared is None else "runs: no call in training yet"

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the module's call."""
        if not self.taken and self._lock.acquire(blocking=False):
            try:
                if self._shared is None and module.training:
                    return self._first(module, args, kwargs)
                if self._shared and module.training and torch.is_grad_enabled() and usual():
                    self._try(module, args, kwargs)
            finally:
                self._lock.release()
        return seen(module, *args, **kwargs) if self.taken else before(module, *args, **kwargs)

    def _first(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the call, and note which lists run several operations on one tensor."""
        lists, scope = lists_of(module), Scope(notices=True)
        with _watched(lists), Recording() as recording:
            found = within(scope, functools.partial(before, module, *args, **kwargs))
        if recording.able:
            self._shared = [held for held in lists if id(held) in scope.shared]
            if not self._shared:
                self._leave(module, "none of its lists runs several operations on one tensor")
            elif recording.reads.effects:  # a copy's call has them too
                self._leave(module, recording.reads.effects[0])
        return found

    def _try(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Take the module if a trial of a copy agrees."""
        modules = list(module.modules())
        places = [modules.index(held) for held in self._shared or []]
        own = structure(module)
        key = None if own is None else (own, *places, *map(_kind, tree_leaves((args, kwargs))))
        found = None if key is None else self._trials.get(key)
        if found is None:
            try:
                found = _trial(module, places, args, kwargs)
            except FOREIGN as error:
                found = f"a trial call raised {type(error).__name__}: {error}"
        if isinstance(found, str):
            self._leave(module, found)
            return
        if key is not None:
            self._trials[key] = found
        summed, count = found
        names = {id(m): name for name, m in module.named_modules(prefix=self.name)}
        for place, written in summed:
            held = modules[place]
            watched(held)
            _mark(held, written=written)
            self._swap.replaced[names[id(held)]] = getattr(type(held), PATCHED).__name__
        self._swap.left.pop(self.name, None)
        self._swap.replaced[self.name] = getattr(type(module), PATCHED).__name__
        self.taken = True
        if self.graphs:
            vars(module)[PART] = Part(Folded(seen))
        vars(module)[AUDIT] = Audit(self.name, self._swap, Watch([]), count, before, seen, leave)

    def _leave(self, module: nn.Module, why: str) -> None:
        """Give the module its class back."""
        become(module, getattr(type(module), PATCHED))
        vars(module).pop(TAKING, None)
        LEFT[module] = self._swap.left.setdefault(self.name, why)
        self._swap.replaced.pop(self.name, None)


def leave(module: nn.Module) -> None:
    """Take from a module what was put there, and let its lists be what they were."""
    for name in (PART, TAKING):
        vars(module).pop(name, None)
    for held in lists_of(module):
        unwatched(held)


class Folded:
    """A call with tensors in lists, as one with tensors.

    Parameters
    ----------
    call : callable
        ``call(module, *args)`` is the module's call.

    Attributes
    ----------
    form : list, optional
        For each argument, None for a tensor, and the type and the length of a list or tuple of tensors. It is
        that of the first call.
    watch : Watch, optional
        Over what the user's code reads in a call, which a replay doesn't; None before a call in training.
    """

    def __init__(self, call: Any) -> None:
        self.call = call
        self.form: list[Any] | None = None
        self.watch: Watch | None = None

    def __call__(self, module: nn.Module, *tensors: Tensor) -> Any:
        """Call the module with arguments of its form."""
        rest = iter(tensors)
        return self.call(
            module,
            *(
                next(rest) if kind is None else kind[0](next(rest) for _ in range(kind[1]))
                for kind in self.form or [None] * len(tensors)
            ),
        )

    def flat(self, args: Sequence[Any]) -> list[Tensor] | None:
        """Return the tensors of arguments; None if they are of another form, or hold other things."""
        form = [None if isinstance(a, Tensor) else (type(a), len(a)) for a in args if _plain(a)]
        if len(form) < len(args) or self.form not in (None, form):
            return None
        self.form = form
        return [t for a in args for t in ([a] if isinstance(a, Tensor) else a)]


def _plain(x: Any) -> bool:
    return isinstance(x, Tensor) or (type(x) in (list, tuple) and all(isinstance(t, Tensor) for t in x))


def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for the ``forward`` of a module whose lists may be taken."""
    taking: Taking | None = None if torch.compiler.is_compiling() else vars(self).get(TAKING)
    if taking is None:
        return before(self, *args, **kwargs)
    audit: Audit | None = vars(self).get(AUDIT)
    if audit is not None and not audit.passes(self, args, kwargs):
        return before(self, *args, **kwargs)
    own: Part | None = vars(self).get(PART)
    return taking(self, *args, **kwargs) if own is None else folded(own, self, args, kwargs)


def folded(part: Part, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return the result of a call, replayed if it takes nothing but tensors and lists of them."""
    run: Any = part.run
    tensors = None if kwargs else run.flat(args)
    if not tensors:
        part.leave("it takes more than tensors")
        return run.call(module, *args, **kwargs)
    if run.watch is None:
        if not (module.training and torch.is_grad_enabled()):
            return run.call(module, *args)
        with Recording() as recording:
            found = part(module, *tensors)
        if recording.able:
            with unprofiled():
                run.watch = _watch_of(part, module, recording.reads)
        return found
    if not run.watch.holds():
        part.clear()
        part.leave(f"its code reads {run.watch.changed}, which changed")
    return part(module, *tensors)


def _watch_of(part: Part, module: nn.Module, reads: Reads) -> Watch:
    """Return a watch over what the code in a module reads; if that can't be, let it run without replays."""
    if whys := [*reads.unclear, *reads.effects]:
        part.leave(whys[0])
    inside = [vars(m) for m in module.modules()]
    audits = [held[AUDIT].watch for held in inside if AUDIT in held]
    zeros = [watch for held in inside for _, watch in held.get(ZEROS, ())]
    return Watch([*reads.held, *(one for watch in (*audits, *zeros) for one in watch.held)])


def seen(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return that result, with weighted sums by one operator."""
    return within(Scope(), functools.partial(sharing, module, *args, **kwargs))


def sharing(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return the result of the module's own ``forward``, with the pools of each state computed once.

    The separable convolutions of a state may be computed together.
    """
    with shared_pools.sharing(), group.reading(module):
        return before(module, *args, **kwargs)


@contextlib.contextmanager
def _watched(lists: Sequence[nn.Module]) -> Iterator[None]:
    for held in lists:
        watched(held)
    try:
        yield
    finally:
        for held in lists:
            unwatched(held)


def _mark(held: nn.Module, *, written: bool) -> None:
    if zeros := zeros_of(held.children()):
        vars(held)[ZEROS] = zeros
    if written:
        vars(held)[WRITES] = True


def _kind(x: Any) -> Any:
    """Return the properties of an argument that a trial depends on."""
    if not isinstance(x, Tensor):
        return id(x)
    return type(x), x.shape, x.dtype, x.device, x.requires_grad


def _trial(
    module: nn.Module, places: Sequence[int], args: Any, kwargs: Any
) -> str | tuple[list[tuple[int, bool]], Count]:
    """Return the lists whose outputs are added up, and whether an operation writes; or how a copy differs."""
    twin, scope = twin_of(module), Scope(notices=True)
    modules = list(twin.modules())
    lists = {modules[place]: place for place in places}
    given = tree_map(functools.partial(part, images=IMAGES), (args, kwargs))
    for held in lists:
        watched(held)
    with aside(twin), untouched(twin.buffers()):
        own, named = tree_map(_copied, given)
        within(scope, functools.partial(before, twin, *own, **named))
    for held in lists:
        _mark(held, written=id(held) in scope.written)
    summed = set[int]()
    for kind, training in CASES:
        case = tree_map(functools.partial(_varied, kind=kind), given)
        twin.train(training)
        if why := difference(twin, before, functools.partial(_summed, found=summed), case):
            return f"with one operator for its weighted sums, {why}"
        if not summed:
            return "it does not add up outputs of its lists, each multiplied by a weight without dimensions"
    found = [(place, id(held) in scope.written) for held, place in lists.items() if id(held) in summed]
    return found, Count(type(module))


def _summed(module: nn.Module, *args: Any, found: set[int], **kwargs: Any) -> Any:
    """Return the result with weighted sums by one operator; note the lists that they are of."""
    scope = Scope()
    out = within(scope, functools.partial(sharing, module, *args, **kwargs))
    found.update(holder for holder, _ in scope.blends.groups)
    return out


def _copied(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def _varied(x: Any, kind: str) -> Any:
    """Return an argument of a trial call: other images, or other weights."""
    if kind == "own" or not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    x = x.detach()
    if x.ndim > 2:
        odd = x[:1, ..., : x.shape[-1] - 1] if kind == "negative" and x.ndim == 4 else x
        return odd.requires_grad_()
    even = torch.arange(x.numel(), device=x.device).view(x.shape) % 2
    if kind == "negative":
        return (-x * even).requires_grad_()
    if kind == "one-hot":
        one = torch.zeros_like(x)
        one.view(-1)[:: x.shape[-1] if x.ndim else 1] = 1.0
        return one.requires_grad_()
    return (x * {"zero": 0.0, "tiny": 1e-3}[kind]).requires_grad_()
