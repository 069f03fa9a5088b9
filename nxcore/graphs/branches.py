"""Branches: operations on one tensor, whose gradients meet there again.

Within a captured call the gradients of a tensor's branches are added up in one launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.call.unusual import PLAIN
from nxcore.call.wrappers import preferring
from nxcore.context import PREFERENCE
from nxcore.graphs.late import LATE
from nxcore.interop import internals
from nxcore.session import default

Operation = Callable[[Tensor], Any]


READERS = 8
"""The readers of a tensor whose gradients become one sum; further ones have another."""


def branched(
    operations: Iterable[Operation], x: Tensor, *, written: bool = False, read: bool = False
) -> list[Any]:
    """Return ``[op(x) for op in operations]``.

    Parameters
    ----------
    operations : iterable of callable
        Each depends on ``x`` and on nothing that another one computes.
    x : Tensor
        The tensor that they read.
    written : bool
        Whether one of them writes into ``x``; then they run one by one.
    read : bool
        Whether ``x`` has a further reader, so that a single operation is one too.
    """
    run = list(operations)
    waiting = None if torch.compiler.is_compiling() else LATE.get()
    if waiting is None or written or len(run) < 2:
        return [op(reader_of(x) if read else x) for op in run]
    return [op(own) for op, own in zip(run, spread(x, len(run)), strict=True)]


def spread(x: Tensor, count: int) -> tuple[Tensor, ...]:
    """Return ``x`` for ``count`` operations; in a captured call, their gradients become one sum."""
    waiting = None if torch.compiler.is_compiling() else LATE.get()
    if waiting is None or count < 2 or not differentiated(x):
        return (x,) * count
    given: tuple[Tensor, ...] = _fan(reader_of(x), count)
    return given


def reader_of(x: Tensor) -> Tensor:
    """Return ``x`` for one reader more; in a captured call, the gradients of all become one sum."""
    waiting = None if torch.compiler.is_compiling() else LATE.get()
    if waiting is None or not differentiated(x):
        return x
    key = id(x), x._version  # it has no public name
    _, readers = waiting.readers.get(key, (x, ()))
    if not readers:
        readers = list(_fan(x, READERS))
        waiting.readers[key] = x, readers  # the tensor too: its id must stay its own
    found: Tensor = readers.pop(0)
    return found


def differentiated(x: Tensor) -> bool:
    """Return whether autograd, and none of torch's transforms, differentiates a function of ``x``."""
    plainly = x.requires_grad and torch.is_grad_enabled() and type(x) in PLAIN
    return plainly and not (
        internals.transformed() or internals.in_forward_mode() or internals.tracing_state() is not None
    )


class _Fan(torch.autograd.Function):
    """A tensor for each branch, all with the memory of the first; the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.add_up = preferring(PREFERENCE.get(), total)  # autograd's thread has no context of the call's
        one(x, count)
        return tuple(x.detach() for _ in range(count))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        found = [g for g in reversed(grads) if g is not None]  # in autograd's order: the last one first
        return ctx.add_up(found) if found else None, None


_fan: Any = _Fan.apply  # untyped in torch


def total(grads: Sequence[Tensor]) -> Tensor:
    """Return the sum of gradients: by a kernel in one launch, if one was chosen."""
    weights = one(grads[0], len(grads)) if len(grads) > 2 else None
    summed = None if weights is None else _sum().by_kernel(list(grads), weights)
    if summed is None:
        summed = functools.reduce(torch.add, grads)
    return summed


@functools.cache
def _sum() -> Any:
    return default().op("weighted_sum")


_ones: dict[Any, Tensor] = {}


def one(x: Tensor, count: int) -> Tensor | None:
    """Return ``count`` ones on the device of ``x``; None while the first ones could only be captured."""
    key = x.device, x.dtype, count
    if key not in _ones:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        _ones[key] = torch.ones(count, device=x.device, dtype=x.dtype)
    return _ones[key]
