"""Variants: calls made of a sample, by other numbers, layouts and sizes than its author thought of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.problem import leaves
from nxcore.trust.memory import each

Args = tuple[Any, ...]


def few(count: int) -> bool:
    """Return whether so many numbers, in the tensors of a longer call or in its results, are few."""
    return count <= 1 << 18


def variants(args: Args, generator: torch.Generator) -> Iterator[tuple[str, Args]]:
    """Yield names and arguments; the caller leaves out what the function refuses."""
    for name, change in _numbers().items():
        yield name, _first(args, change)
    yield "other weights", _rest(args, lambda t: _normal(t, generator))
    yield "some indices -100", _indices(args)
    for name, lay in LAYOUTS.items():
        yield name, each(args, lay)
    first = next((t for t in leaves(args) if t.ndim), None)
    if first is None:
        return
    sizes = dict.fromkeys(n for t in leaves(args) for n in t.shape)
    for size in sizes:
        for other in (0, 1, size - 1, size + 1, 4 * size + 3):
            if other >= 0 and other != size and few(_count(args, {size: other})):
                yield f"size {other} for {size}", _resized(args, {size: other}, generator)
    # Long rows, and few of them.
    long = {n: min(n, 3) for n in sizes} | {first.shape[-1]: 4999}
    if few(_count(args, long)):
        yield "rows of 4999", _resized(args, long, generator)


def others(args: Args) -> Args:
    """Return arguments of the same form with other numbers, of the same signs."""

    def change(tensor: Tensor) -> Tensor:
        flat = tensor.reshape(-1).roll(1).reshape(tensor.shape)
        return flat * 0.75 if tensor.is_floating_point() else flat

    return tuple(each(args, change))


def _first(args: Args, change: Callable[[Tensor], Tensor]) -> Args:
    """Change the first floating tensor."""
    left = iter((True,))
    return tuple(
        each(args, lambda t: change(t.clone()) if t.is_floating_point() and next(left, False) else t)
    )


def _rest(args: Args, change: Callable[[Tensor], Tensor]) -> Args:
    """Change all floating tensors but the first."""
    left = iter((True,))
    return tuple(each(args, lambda t: t if not t.is_floating_point() or next(left, False) else change(t)))


def _indices(args: Args) -> Args:
    return tuple(
        each(args, lambda t: t if t.is_floating_point() else _put(t.clone(), slice(None, None, 3), -100))
    )


def _put(tensor: Tensor, where: Any, value: float) -> Tensor:
    """Write a value into places of a tensor, counted as if it were flat."""
    flat = tensor.reshape(-1)
    flat[where] = value
    return flat.reshape(tensor.shape)


def _row(tensor: Tensor, value: float) -> Tensor:
    if tensor.ndim and tensor.numel():
        tensor[(0,) * (tensor.ndim - 1)] = value
    return tensor


def _middle(tensor: Tensor, value: float) -> Tensor:
    return _put(tensor, tensor.numel() // 2, value) if tensor.numel() else tensor


def _normal(tensor: Tensor, generator: torch.Generator) -> Tensor:
    made = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return made.to(tensor)


def _numbers() -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the changes of a tensor's numbers by name."""
    return {
        "numbers of 1000": lambda t: t * 1000,
        "numbers of 0.001": lambda t: t * 0.001,
        "numbers of 1e-30": lambda t: t * 1e-30,
        "far from zero": lambda t: t + 1000,
        "all negative": lambda t: -t.abs() - 1,
        "all positive": lambda t: t.abs() + 1,
        "a row of zeros": lambda t: _row(t, 0.0),
        "ties": lambda t: t.round(),
        "a NaN": lambda t: _middle(t, math.nan),
        "an infinity": lambda t: _middle(t, math.inf),
        "minus infinity": lambda t: _middle(t, -math.inf),
        "a row of minus infinity": lambda t: _row(t, -math.inf),
    }


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


def _strided(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, torch.full_like(tensor, 3)], -1)[..., 0]


def _offset(tensor: Tensor) -> Tensor:
    return torch.cat([tensor.new_zeros(1), tensor.reshape(-1)])[1:].view(tensor.shape)


def _expanded(tensor: Tensor) -> Tensor:
    return tensor[:1].expand(tensor.shape) if tensor.ndim > 1 else tensor


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "strided": _strided,
    "at an odd offset": _offset,
    "expanded": _expanded,
}


def _count(args: Args, sizes: dict[int, int]) -> int:
    return sum(math.prod(sizes.get(n, n) for n in t.shape) for t in leaves(args))


def _resized(args: Args, sizes: dict[int, int], generator: torch.Generator) -> Args:
    """Return arguments with other sizes wherever a size occurs, of numbers drawn from the old ones.

    Indices into a size that shrinks are taken modulo it.
    """

    def change(tensor: Tensor) -> Tensor:
        shape = [sizes.get(n, n) for n in tensor.shape]
        if shape == list(tensor.shape):
            drawn = tensor
        elif not tensor.numel():
            return tensor.new_zeros(shape)
        else:
            at = torch.randint(tensor.numel(), shape, generator=generator)
            drawn = tensor.reshape(-1)[at.to(tensor.device)]
            if tensor.is_floating_point():
                noise = torch.rand(shape, generator=generator, dtype=torch.float64) / 4 + 0.875
                drawn = (drawn.double() * noise.to(tensor.device)).to(tensor.dtype)
        if not tensor.is_floating_point() and tensor.dtype is not torch.bool and tensor.numel():
            for old, new in sizes.items():
                if new and int(tensor.max()) < old and int(tensor.max()) >= new:
                    drawn = torch.where(drawn < 0, drawn, drawn % new)
        return drawn

    return tuple(each(args, change))
