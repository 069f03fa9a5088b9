"""Casts: the edges of a cell under autocast, which compute in float32 between two casts.

Layers under autocast round each result to the half type. Here a state is read as float32, the steps between
are float32, and what leaves is rounded: to the dtype that the layers return, with a smaller error. Weights
are read as they are. A convolution's result is rounded, or a whole node where the sums of its edges take
their norms; then the other edges read the node as it was before it was rounded.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.graphs.branches import reader_of
from nxcore.interop.internals import any_autocast, batched
from nxcore.nas.pending import version

BLOCK, FILL = 65536, 132
"""The elements of a block of torch's launches for several tensors, and blocks that fill a large GPU."""


def half_of(x: Tensor) -> torch.dtype | None:
    """Return the dtype that autocast gives convolutions of ``x``; None where it changes nothing."""
    device = x.device.type
    # Of some devices torch refuses to say whether it is on, so whether any is comes first.
    if not any_autocast() or x.dtype is torch.float64:
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def rounded(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return tensors of one dtype in another, with gradients, by one call each way."""
    found: tuple[Tensor, ...] = _rounded(dtype, *tensors)
    return found


class Widened:
    """The states of a call of a cell in float32, by the tensors that its own code has."""

    def __init__(self) -> None:
        self._wide: dict[Any, tuple[Tensor, Tensor]] = {}

    def of(self, x: Tensor) -> Tensor:
        """Return a state in float32: as it was before it was rounded, or widened, once."""
        if _place(x) not in self._wide:
            (wide,) = alike([reader_of(x)], torch.float32)
            self._wide[_place(x)] = x, wide  # the tensor too: its id must stay its own
        return self._wide[_place(x)][1]

    def rounded(self, wide: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a state in another dtype, and note which it was."""
        (x,) = rounded([reader_of(wide)], dtype)
        self._wide[_place(x)] = x, wide
        return x


def _place(x: Tensor) -> Any:
    return id(x), version(x), torch.is_grad_enabled()


def alike(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors, those of other dtypes in this one."""
    others = [t for t in tensors if t.dtype is not dtype]
    if len({t.dtype for t in others}) > 1:
        return [t.to(dtype) for t in tensors]
    found = iter(rounded(others, dtype) if others else ())
    return [t if t.dtype is dtype else next(found) for t in tensors]


class _Rounded(torch.autograd.Function):
    """Tensors in another dtype."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtype = tensors[0].dtype
        return tuple(_cast(tensors, dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [g for g in grads if g is not None]
        if torch.is_grad_enabled() or any(batched(g) for g in there):
            return None, *(None if g is None else g.to(ctx.dtype) for g in grads)
        found = iter(_cast(there, ctx.dtype))
        return None, *(None if g is None else next(found) for g in grads)


_rounded: Any = _Rounded.apply  # untyped in torch


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors in another dtype, dense; on a GPU in few launches.

    One launch for several tensors has a block for so many elements of each that a few tensors leave most of
    the device idle: then it has the parts of each. Where a single tensor becomes narrower, torch has a kernel
    that is as fast; where it becomes wider, that takes three times as long.
    """
    found = [torch.empty_like(t, dtype=dtype) for t in tensors]
    given = list(tensors)
    if len(given) == 1 and dtype.itemsize < given[0].dtype.itemsize:
        found[0].copy_(given[0])
    elif given:
        parts = [pair for to, t in zip(found, given, strict=True) for pair in _parts(to, t, few=_few(given))]
        torch._foreach_copy_(*map(list, zip(*parts, strict=True)))  # type: ignore[arg-type]  # two lists
    return found


def _few(tensors: Sequence[Tensor]) -> bool:
    """Return whether one launch of torch's for tensors leaves most of a large GPU idle."""
    return sum(t.numel() for t in tensors) < BLOCK * FILL


def _parts(to: Tensor, t: Tensor, *, few: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a tensor and its copy, or views of both along the first dimension.

    Views that lie otherwise than their copies, as those of an expanded gradient do, would take a launch each.
    """
    if few and t.numel() > BLOCK and t.stride()[1:] == to.stride()[1:]:
        yield from zip(to.unbind(0), t.unbind(0), strict=True)
    else:
        yield to, t
