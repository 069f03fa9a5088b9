"""Comparison: two ways to run a module, by all that a caller can see of a call and its backward pass."""

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from nxcore.call.unusual import unusual
from nxcore.context import PREFERENCE, Purpose, in_force
from nxcore.errors import FOREIGN
from nxcore.graphs.dice import differ, hosts, put_hosts_back
from nxcore.graphs.hooks import saving
from nxcore.graphs.late import LATE
from nxcore.graphs.snapshot import HOOKS
from nxcore.nas import group, node, shared_pools
from nxcore.nas.lists import SCOPE
from nxcore.nas.watch import AUDIT
from nxcore.trust.truth import numbers

AGREES, NOISE = 1e-8, 1e-10
"""The allowed difference of results and gradients in float64, relative to each, and to the largest of them: a
norm of equal values has gradients that are rounding alone.
"""

Call = Callable[..., Any]


Outcome = tuple[list[Tensor | None], list[bool], list[Any]]
"""Results, gradients, arguments and buffers; whether each result has a gradient; the random generators."""


def twin_of(module: nn.Module, device: torch.device | None = None) -> nn.Module:
    """Return a copy in float64, whose calls no hook sees, and none of which is repeated."""
    twin = copy.deepcopy(module).to(device, torch.float64)
    for m in twin.modules():
        if AUDIT in vars(m):
            vars(m)[AUDIT].count.due = math.inf
        for name in HOOKS:
            vars(m)[name].clear()
    return twin


def difference(twin: nn.Module, own: Call, ours: Call, given: Any) -> str | None:
    """Return how ``ours`` differs from a module's ``own`` code; empty if it does not, None if that raises.

    Both are called with ``twin``, a copy of it in float64 whose buffers are as before afterwards, and with
    the ``given`` arguments and named arguments.
    """
    with aside(twin):
        state = hosts()
        try:
            wanted = _outcome(own, twin, given)
        except FOREIGN:
            return None
        put_hosts_back(state)
        try:
            found = _outcome(ours, twin, given)
        except FOREIGN as error:
            return f"a trial call raised {type(error).__name__}: {error}"
    (mine, graded, drawn), (theirs, as_graded, as_drawn) = found, wanted
    if differ(drawn, as_drawn):
        return "a trial call drew other random numbers"
    if graded != as_graded or not _agree(mine, theirs):
        return "a trial call returned another result or gradient"
    return ""


def usual() -> bool:
    """Return whether a copy of a module can be called now as the module is."""
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    runs = PREFERENCE.get().purpose in (Purpose.RUN, Purpose.WAIT)
    return runs and not (capturing or unusual() or saving()) and LATE.get() is None


def part(x: Any, images: int | None = None) -> Any:
    """Return an argument of a trial: in float64, of some images alone."""
    if not isinstance(x, Tensor):
        return x
    x = x.detach()[:images] if x.ndim == 4 else x.detach()
    return x.double().requires_grad_() if x.is_floating_point() else x


@contextlib.contextmanager
def aside(twin: nn.Module) -> Iterator[None]:
    """Let calls of a copy have no effect: on random generators, statistics of modules, choices of kernels."""
    first = next((p for p in twin.parameters()), torch.empty(0))
    devices = list({p.device.index for p in twin.parameters() if p.is_cuda})
    late, scope, state = LATE.set(None), SCOPE.set(None), hosts()
    try:
        with (
            shared_pools.sharing(on=False),
            group.reading(None),
            node.waiting(on=False),
            torch.random.fork_rng(devices),
            torch.autocast(first.device.type, enabled=False),
            torch.enable_grad(),
            in_force(backends=("torch",)),  # which wakes no module that rests
        ):
            yield
    finally:
        put_hosts_back(state)
        SCOPE.reset(scope)
        LATE.reset(late)


def _outcome(call: Call, twin: nn.Module, given: Any) -> Outcome:
    """Return what a call on copies of the arguments leaves; buffers are as before."""
    for device in {p.device for p in twin.parameters() if p.is_cuda}:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(0)
    were = [(b, b.detach().clone()) for b in twin.buffers()]
    leaves: list[Tensor] = []
    args, kwargs = given = tree_map(functools.partial(_copied, leaves=leaves), given)
    leaves += [p for p in twin.parameters() if p.requires_grad]
    try:
        results = [t for t in tree_leaves(call(twin, *args, **kwargs)) if isinstance(t, Tensor)]
        held = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
        loss = sum(((t * _wave(t)).sum() for t in results if t.requires_grad), torch.zeros(()))
        grads = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else []
        left: list[Tensor | None] = [
            t if t is None else t.detach().clone() for t in (*results, *grads, *held, *twin.buffers())
        ]
        states = [*hosts(), *(torch.cuda.get_rng_state(p.device) for p in _first_cuda(twin))]
        return left, [t.requires_grad for t in results], [_bytes(s) for s in states]
    finally:
        with torch.no_grad():
            for b, value in were:
                b.data.copy_(value)


def _first_cuda(twin: nn.Module) -> list[nn.Parameter]:
    return [p for p in twin.parameters() if p.is_cuda][:1]


def _bytes(state: Any) -> Any:
    return bytes(state.numpy().tobytes()) if isinstance(state, Tensor) else state


def _copied(x: Any, leaves: list[Tensor]) -> Any:
    """Return a copy, which the call may write into; note its leaf where it has a gradient."""
    if not isinstance(x, Tensor):
        return x
    if not x.requires_grad:
        return x.detach().clone()
    leaves.append(x.detach().clone().requires_grad_())
    return leaves[-1].clone()


def _wave(t: Tensor) -> Tensor:
    return torch.arange(t.numel(), device=t.device).mul(0.7).sin().to(t.dtype).view(t.shape)


def _agree(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> bool:
    """Return whether tensors are nearly others; missing ones are equal. The host waits for a device once."""
    if [_kind(t) for t in found] != [_kind(t) for t in wanted]:
        return False
    pairs = [(f, w) for f, w in zip(found, wanted, strict=True) if f is not None and w is not None]
    wide = [(f.double(), w.double()) for f, w in pairs if w.is_floating_point()]
    others = [(f != w).any() for f, w in pairs if not w.is_floating_point()]
    norms = [norm for f, w in wide for norm in (w.norm(), (f - w).norm())]
    values = numbers([*others, *norms])
    sizes, offs = values[len(others) :: 2], values[len(others) + 1 :: 2]
    noise = NOISE * max(sizes, default=0.0) + 1e-12
    near = all(
        math.isfinite(off) and off <= AGREES * size + noise for size, off in zip(sizes, offs, strict=True)
    )
    return near and not any(values[: len(others)])


def _kind(t: Tensor | None) -> Any:
    return None if t is None else (t.shape, t.dtype)
