"""Lists of operations whose outputs a module's own code weights and adds up: that becomes one operator.

The module's code still runs. Within its call, in a ``Scope``, the operations of its lists return ``Pending``
tensors.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from nxcore.graphs.branches import spread
from nxcore.graphs.hooks import hooked
from nxcore.nas import proof
from nxcore.nas.group import outputs
from nxcore.nas.pending import Blends, Output, Pending, pending, value_of, version
from nxcore.nas.shared_pools import shared
from nxcore.nas.watch import Watch
from nxcore.nn.exchange import PATCHED, become, kind, patched

ZEROS, WRITES = "_nxcore_zeros", "_nxcore_writes"
"""Attributes of what holds operations: those that return zeros; that one writes into its input."""


class Scope:
    """A call of a module whose lists are seen.

    Parameters
    ----------
    notices : bool
        Whether operations return their outputs at once, and are only noted.

    Attributes
    ----------
    blends : Blends
        The sums that became one operator.
    met : dict
        List and tensor -> the operations that were called with them, if the scope only notices.
    written : set
        The lists whose operations write into their input.
    """

    def __init__(self, *, notices: bool = False) -> None:
        self.notices, self.blends = notices, Blends()
        self.met: dict[Any, set[nn.Module]] = {}
        self.written: set[int] = set()
        self._given: dict[Any, tuple[Any, tuple[Tensor, ...]]] = {}
        self._known: dict[Any, weakref.ref[Tensor]] = {}

    def call(self, holder: nn.Module, place: int, op: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call the operation at a place of a list."""
        if kwargs or len(args) != 1 or not isinstance(args[0], Tensor) or hooked(op):
            args, kwargs = tree_map_only(Pending, value_of, (args, kwargs))
            return op(*args, **kwargs)
        x = value_of(args[0]) if type(args[0]) is Pending else args[0]
        group = id(holder), id(x)
        if self.notices:
            return self._noted(group, op, x)
        written = WRITES in vars(holder)
        count = len(holder)  # type: ignore[arg-type]  # a list has a length
        if not written and (found := shared(x, op)) is not None:
            return pending(Output(lambda: found, group, self.blends, count, common=True))
        if not written and (made := outputs([op], x).get(op)) is not None:
            return pending(Output(lambda: made.out, group, self.blends, count))
        given = *group, version(x)
        if given not in self._given:
            self._given[given] = x, (x,) * count if written else spread(x, count)
        own = self._given[given][1][place]
        zeros = is_zero(op, vars(holder).get(ZEROS, ()))
        run = functools.partial(op, own)
        return pending(Output(run, group, self.blends, count, zeros=zeros))

    def _noted(self, group: Any, op: nn.Module, x: Tensor) -> Any:
        if group not in self._known or self._known[group]() is not x:
            self._known[group], self.met[group] = weakref.ref(x), set()
        self.met[group].add(op)
        before = version(x)
        found = op(x)
        if version(x) != before:
            self.written.add(group[0])
        return found

    @property
    def shared(self) -> set[int]:
        """The lists of which several operations were called with one tensor, by identity."""
        return {holder for (holder, _), ops in self.met.items() if len(ops) > 1}


SCOPE: ContextVar[Scope | None] = ContextVar("nxcore_scope", default=None)
"""The call in progress of a module whose lists are seen."""


class Candidate:
    """An operation as the code of a module sees it: its call is one of the scope's."""

    def __init__(self, holder: nn.Module, place: int, op: nn.Module, scope: Scope) -> None:
        self.__dict__.update(_holder=holder, _place=place, _op=op, _scope=scope)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operation."""
        return self._scope.call(self._holder, self._place, self._op, args, kwargs)

    @property  # type: ignore[misc]  # object's can be set
    def __class__(self) -> Any:
        """The operation's class, which code may look at."""
        return type(self._op)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_op"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._op, name, value)


def _seen(holder: nn.Module, operations: Any) -> list[Any]:
    """Return all operations that ``holder`` holds, as the scope sees them."""
    scope = None if torch.compiler.is_compiling() else SCOPE.get()
    if scope is None:
        return list(operations)
    return [Candidate(holder, place, op, scope) for place, op in enumerate(operations)]


def _own(holder: Any) -> Any:
    """Return the class before it was patched; another thread may have given it back."""
    return getattr(type(holder), PATCHED, type(holder))


def _iter(self: Any) -> Iterator[Any]:
    return iter(_seen(self, _own(self).__iter__(self)))


def _getitem(self: Any, key: Any) -> Any:
    op = _own(self).__getitem__(self, key)
    scope = None if torch.compiler.is_compiling() else SCOPE.get()
    place = None if scope is None else next((i for i, own in enumerate(self.children()) if own is op), None)
    return op if scope is None or place is None else Candidate(self, place, op, scope)


def _values(self: Any) -> Any:
    return _seen(self, _own(self).values(self))


def _items(self: Any) -> Any:
    return list(zip(self.keys(), _values(self), strict=True))


LISTS = (nn.ModuleList, nn.ModuleDict)
METHODS = {
    nn.ModuleList: {"__iter__": _iter, "__getitem__": _getitem},
    nn.ModuleDict: {"__getitem__": _getitem, "values": _values, "items": _items},
}


def zeros_of(operations: Iterable[nn.Module]) -> tuple[tuple[nn.Module, Watch], ...]:
    """Return those operations that return zeros for every input, with watches over what their code reads."""
    found = ((op, proof.zeros(op)) for op in operations)
    return tuple((op, reads.watch(op)) for op, reads in found if reads is not None)


def is_zero(op: nn.Module, zeros: Iterable[tuple[nn.Module, Watch]]) -> bool:
    """Return whether an operation is one of those that return zeros, as its code still does."""
    return any(op is zero and watch.holds() for zero, watch in zeros)


def lists_of(module: nn.Module) -> list[nn.Module]:
    """Return the innermost lists and dictionaries of modules that ``module`` holds, each of at least two."""
    found: list[nn.Module] = []
    for child in module.children():
        if not isinstance(child, LISTS):
            continue
        inner = lists_of(child)
        if not any(isinstance(op, LISTS) for op in child.children()) and len(child) > 1:
            inner.append(child)
        found += inner
    return found


def watched(holder: nn.Module) -> None:
    """Let the calls of the operations that ``holder`` holds be seen within a scope."""
    cls = type(holder)
    if hasattr(cls, PATCHED):
        return
    methods = METHODS[next(known for known in LISTS if isinstance(holder, known))]
    become(holder, patched(cls, methods))


def unwatched(holder: nn.Module) -> None:
    """Undo ``watched``."""
    become(holder, getattr(type(holder), PATCHED, kind(holder)))
    for name in (ZEROS, WRITES):
        vars(holder).pop(name, None)


def within(scope: Scope, call: Callable[[], Any]) -> Any:
    """Return the result of ``call`` in ``scope``, computed."""
    token = SCOPE.set(scope)
    try:
        return tree_map_only(Pending, value_of, call())
    finally:
        SCOPE.reset(token)
