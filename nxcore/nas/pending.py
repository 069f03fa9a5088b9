"""Pending: outputs of operations, whose weighted sum waits until its value is needed.

A cell's own code weights the outputs of a list of operations and adds them up, one after the other. Here
these outputs are tensors that remember both, so that the sum becomes one operator. All other functions of
torch get their values.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from nxcore import session
from nxcore.call.unusual import PLAIN
from nxcore.graphs.rows import vector_of

MULTIPLIES = frozenset(
    {Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.multiply, torch.mul, torch.multiply}
)
ADDS = frozenset({Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add})
ADDS_HERE = frozenset({Tensor.add_, Tensor.__iadd__})

Group = Any
"""The list and the tensor that operations were called with; equal for those of one edge."""

Factor = Any
"""A tensor without dimensions; None where there is no factor."""


class Blends:
    """The weighted sums that were computed by one operator, by list.

    Attributes
    ----------
    groups : list
        The group of each.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []


class Pending(Tensor):
    """An output, or a sum of weighted outputs, that is computed where its value is needed.

    All attributes and functions of torch, except products with a factor and sums, are those of ``value``.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what ``func`` returns for the values, or another sum that waits."""
        if not kwargs and len(args) == 2:
            waiting = _later(func, *args)
            if waiting is not None:
                return waiting
        if func in ADDS_HERE and _grown(*args, **(kwargs or {})):
            return args[0]
        if kwargs or any(type(a) in (list, tuple, dict) for a in args):
            args, kwargs = tree_map_only(Pending, value_of, (args, kwargs or {}))
            return func(*args, **kwargs)
        return func(*(value_of(a) if type(a) is Pending else a for a in args))


class Output:
    """The output of an operation.

    Parameters
    ----------
    run : callable
        Returns the output. It is called at once unless the output is ``zeros``.
    group : Any
        Equal for all operations of one edge.
    blends : Blends
        Gets the sums.
    count : int
        The operations of the edge: a sum of so many terms is complete, and waits no longer.
    zeros : bool
        Whether the output is known to be zeros; then a sum leaves it out.
    common : bool
        Whether other edges have the same tensor; then code that gets it has a copy, which it may write into.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        group: Group,
        blends: Blends,
        count: int,
        *,
        zeros: bool = False,
        common: bool = False,
    ) -> None:
        self.group, self.blends, self.count = group, blends, count
        self.zeros, self.common = zeros, common
        self.readers: list[weakref.ref[Pending]] = []
        self._run, self._found = run, None if zeros else run()

    @property
    def tensor(self) -> Any:
        """The output itself."""
        if self._found is None:
            self._found = self._run()
        return self._found


def pending(output: Output) -> Pending:
    """Return an output whose products and sums wait."""
    return _made(((None, output),))


def value_of(waiting: Pending) -> Tensor:
    """Return the value of what waits; it is computed once.

    The sums that read an output are computed before it is given away: its values may change from then on.
    """
    held = vars(waiting)
    if held["_value"] is None:
        if _bare(held["_terms"]):
            for known in held["_terms"][0][1].readers:
                if (reader := known()) is not None and reader is not waiting:
                    value_of(reader)
        with torch.set_grad_enabled(held["_graded"]):
            held["_value"] = _value(held["_terms"])
        held["_terms"] = ()
    found: Tensor = held["_value"]
    return found


def _made(terms: tuple[tuple[Factor, Output], ...]) -> Pending:
    made: Pending = torch.Tensor._make_subclass(Pending, _nothing())  # noqa: SLF001  it has no public name
    vars(made).update(_terms=terms, _value=None, _graded=torch.is_grad_enabled())
    for _, output in terms:
        output.readers.append(weakref.ref(made))
    return made


@functools.cache
def _nothing() -> Tensor:
    return torch.empty(0)


def _waits(x: Any) -> bool:
    """Return whether ``x`` has no value yet, and would get the one of a call made now."""
    return type(x) is Pending and vars(x)["_value"] is None and vars(x)["_graded"] is torch.is_grad_enabled()


def _later(func: Any, a: Any, b: Any) -> Tensor | None:
    """Return the product or the sum, which waits unless it is complete; None for anything else."""
    if func in MULTIPLIES:
        waiting, factor = (a, b) if type(a) is Pending else (b, a)
        if not _waits(waiting) or type(factor) not in PLAIN or factor.ndim or not factor.is_floating_point():
            return None
        terms = vars(waiting)["_terms"]
        return _made(((factor, terms[0][1]),)) if _bare(terms) else None
    if func in ADDS:
        if type(b) in (int, float) and b == 0 and _waits(a):  # the builtin sum begins with 0
            return a  # type: ignore[no-any-return]  # it waits
        terms = _together(a, b)
        if terms is None:
            return None
        made = _made(terms)
        return value_of(made) if _complete(terms) else made
    return None


def _bare(terms: Sequence[tuple[Factor, Output]]) -> bool:
    return len(terms) == 1 and terms[0][0] is None


def _together(a: Any, b: Any) -> Any:
    """Return the terms of a sum that waits; None if it is one of values."""
    if not (_waits(a) and _waits(b)):
        return None
    first, second = vars(a)["_terms"], vars(b)["_terms"]
    if _bare(first) or _bare(second) or first[-1][1].group != second[0][1].group:
        return None
    return first + second


def _complete(terms: Sequence[tuple[Factor, Output]]) -> bool:
    return len(terms) == terms[0][1].count


def _grown(a: Any, b: Any = None, **kwargs: Any) -> bool:
    """Add ``b`` to the sum ``a`` in place, if it waits."""
    terms = None if kwargs else _together(a, b)
    if terms is None:
        return False
    vars(a)["_terms"] = terms
    for _, output in vars(b)["_terms"]:
        output.readers.append(weakref.ref(a))
    if _complete(terms):
        value_of(a)
    return True


def version(x: Tensor) -> int:
    """Return how often a tensor was written."""
    return int(x._version)  # noqa: SLF001  it has no public name


def _value(terms: Sequence[tuple[Factor, Output]]) -> Tensor:
    """Return the sum of weighted outputs: by one operator where that computes the same."""
    kept = [i for i, (_, output) in enumerate(terms) if not output.zeros]
    if len(kept) > 1 and _alike([terms[i][1].tensor for i in kept], [w for w, _ in terms]):
        output = terms[kept[0]][1]
        output.blends.groups.append(output.group)
        weights = vector_of([factor for factor, _ in terms], kept)
        return _blended([terms[i][1].tensor for i in kept], weights)
    if len(terms) == 1 and terms[0][0] is None and terms[0][1].common:
        copied: Tensor = terms[0][1].tensor.clone()
        return copied
    found: Tensor = functools.reduce(torch.add, [o.tensor if w is None else w * o.tensor for w, o in terms])
    return found


def _blended(outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    found: Tensor = session.default().op("weighted_sum")(outputs, weights)
    return found


def _alike(outputs: Sequence[Any], factors: Sequence[Tensor]) -> bool:
    """Return whether the outputs are plain tensors of one kind, and so are the factors."""
    first = outputs[0]
    if type(first) not in PLAIN or not first.is_floating_point() or not first.ndim:
        return False
    kinds = {(type(t) in PLAIN, t.shape, t.dtype, t.device) for t in outputs}
    return len(kinds) == 1 and {(w.dtype, w.device) for w in factors} == {(factors[0].dtype, first.device)}
