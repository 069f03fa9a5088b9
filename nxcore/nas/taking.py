"""Taking: whether a module that weights and adds up outputs of its lists may do that by one operator.

The first call shows which of its lists run several operations on one tensor. At a later call in training, a
copy runs both ways on a part of the arguments. If results and gradients are the same, the module is taken; if
not, it becomes what it was.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from nxcore import session
from nxcore.call.unusual import unusual
from nxcore.errors import FOREIGN
from nxcore.graphs.buffers import untouched
from nxcore.graphs.hooks import saving
from nxcore.graphs.snapshot import attributes
from nxcore.nas import group, shared_pools
from nxcore.nas.lists import WRITES, ZEROS, Scope, lists_of, unwatched, watched, within
from nxcore.nas.mixed import PART
from nxcore.nn import Part, Swap
from nxcore.nn.exchange import PATCHED, become

TAKING = "_nxcore_taking"
"""The attribute of a module whose lists may be taken."""

AGREES = 1e-8
"""The allowed relative difference of results and gradients, in float64."""

IMAGES = 2
"""The most images of a trial."""

LEFT: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
"""Module -> why it is what it was again."""


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
    """

    def __init__(self, name: str, swap: Swap, *, graphs: bool) -> None:
        self.name, self.graphs, self._swap = name, graphs, swap
        self.taken = False
        self._shared: list[nn.Module] | None = None
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
                if self._shared is None:
                    return self._first(module, args, kwargs)
                if module.training and torch.is_grad_enabled() and _usual():
                    self._try(module, args, kwargs)
            finally:
                self._lock.release()
        return seen(module, *args, **kwargs) if self.taken else before(module, *args, **kwargs)

    def _first(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the call, and note which lists run several operations on one tensor."""
        lists, scope = lists_of(module), Scope(notices=True)
        with _watched(lists):
            found = within(scope, functools.partial(before, module, *args, **kwargs))
        self._shared = [held for held in lists if id(held) in scope.shared]
        if not self._shared:
            self._leave(module, "none of its lists runs several operations on one tensor")
        return found

    def _try(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Take the module if a trial of a copy agrees."""
        shared = self._shared or []
        try:
            with (
                torch.random.fork_rng(_devices(module)),
                torch.autocast(_device_type(module), enabled=False),
                session.default().use("torch"),
            ):
                found = _trial(module, shared, args, kwargs)
        except FOREIGN as error:
            self._leave(module, f"a trial call raised {type(error).__name__}: {error}")
            return
        if isinstance(found, str):
            self._leave(module, found)
            return
        names = {id(m): name for name, m in module.named_modules(prefix=self.name)}
        for held, zeros, written in found:
            watched(held)
            _mark(held, zeros, written=written)
            self._swap.replaced[names[id(held)]] = getattr(type(held), PATCHED).__name__
        self._swap.left.pop(self.name, None)
        self._swap.replaced[self.name] = getattr(type(module), PATCHED).__name__
        self.taken = True
        if self.graphs:
            vars(module)[PART] = Part(Folded(seen))

    def _leave(self, module: nn.Module, why: str) -> None:
        """Give the module its class back."""
        become(module, getattr(type(module), PATCHED))
        vars(module).pop(TAKING, None)
        LEFT[module] = self._swap.left.setdefault(self.name, why)
        self._swap.replaced.pop(self.name, None)


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
    """

    def __init__(self, call: Any) -> None:
        self.call = call
        self.form: list[Any] | None = None

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
    part: Part | None = vars(self).get(PART)
    return taking(self, *args, **kwargs) if part is None else folded(part, self, args, kwargs)


def folded(part: Part, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return the result of a call, replayed if it takes nothing but tensors and lists of them."""
    run: Any = part.run
    tensors = None if kwargs else run.flat(args)
    if tensors:
        return part(module, *tensors)
    part.leave("it takes more than tensors")
    return run.call(module, *args, **kwargs)


def before(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of the module's own ``forward``."""
    return getattr(type(module), PATCHED, type(module)).forward(module, *args, **kwargs)


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


def _mark(held: nn.Module, zeros: Sequence[nn.Module], *, written: bool) -> None:
    if zeros:
        vars(held)[ZEROS] = tuple((op, attributes(op)) for op in zeros)
    if written:
        vars(held)[WRITES] = True


def _usual() -> bool:
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return not (capturing or unusual() or saving())


def _devices(module: nn.Module) -> list[int]:
    return list({p.device.index for p in module.parameters() if p.is_cuda})


def _device_type(module: nn.Module) -> str:
    return next((p.device.type for p in module.parameters()), "cpu")


def _trial(
    module: nn.Module, shared: Sequence[nn.Module], args: Any, kwargs: Any
) -> str | list[tuple[nn.Module, list[nn.Module], bool]]:
    """Return each list, its operations that return zeros, and whether one writes; or how a copy differs."""
    twin = copy.deepcopy(module).double()
    others: dict[nn.Module, nn.Module] = dict(zip(module.modules(), twin.modules(), strict=True))
    lists, given = [others[held] for held in shared], tree_map(_part, (args, kwargs))
    for held in lists:
        watched(held)
    plain, scope = Scope(notices=True, looks=True), Scope()
    with untouched(twin.buffers()):
        wanted = _outcome(twin, plain, given)
    zeros = [op for op, always in plain.zeros.items() if always and _zeros_too(op, given)]
    for held in lists:
        _mark(held, [op for op in held.children() if op in zeros], written=id(held) in plain.written)
    found = _outcome(twin, scope, given)
    summed = {holder for holder, _ in scope.blends.groups}
    if not summed:
        return "it does not add up outputs of its lists, each multiplied by a weight without dimensions"
    if not _agree(found, wanted):
        return "a trial call with one operator for its weighted sums returned another result or gradient"
    return [
        (held, [op for op in held.children() if others[op] in zeros], id(others[held]) in plain.written)
        for held in shared
        if id(others[held]) in summed
    ]


def _part(x: Any) -> Any:
    """Return an argument of the trial."""
    if not isinstance(x, Tensor):
        return x
    x = x.detach()[:IMAGES] if x.ndim == 4 else x.detach()
    return x.double().requires_grad_() if x.is_floating_point() else x


def _outcome(twin: nn.Module, scope: Scope, given: Any) -> list[Tensor | None]:
    """Return results, gradients and buffers after a call."""
    args, kwargs = given
    torch.manual_seed(0)
    run = before if scope.notices else sharing
    out = within(scope, functools.partial(run, twin, *args, **kwargs))
    results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    leaves = [
        t for t in [*tree_leaves(given), *twin.parameters()] if isinstance(t, Tensor) and t.requires_grad
    ]
    loss = sum(((t * _wave(t)).sum() for t in results if t.requires_grad), torch.zeros(()))
    grads = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else []
    return [t if t is None else t.detach().clone() for t in (*results, *grads, *twin.buffers())]


def _wave(t: Tensor) -> Tensor:
    return torch.arange(t.numel(), device=t.device).mul(0.7).sin().to(t.dtype).view(t.shape)


def _zeros_too(op: nn.Module, given: Any) -> bool:
    """Return whether an operation returns zeros in evaluation too."""
    x = next((t for t in tree_leaves(given) if isinstance(t, Tensor) and t.ndim == 4), None)
    was = op.training
    with torch.no_grad():
        try:
            return x is not None and not op.eval()(x).any()
        finally:
            op.train(was)


def _agree(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> bool:
    return len(found) == len(wanted) and all(_near(f, w) for f, w in zip(found, wanted, strict=True))


def _near(found: Tensor | None, wanted: Tensor | None) -> bool:
    """Return whether a tensor is nearly another one; missing ones are equal."""
    if found is None or wanted is None:
        return found is wanted
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    off = float((found.double() - wanted.double()).norm())
    return math.isfinite(off) and off <= AGREES * float(wanted.double().norm()) + 1e-12
