"""Pointwise functions on meta tensors, and stacks of numbers, described without torch's compiler.

Torch computes what ``a * b`` returns on meta tensors in Python, and imports its compiler for that, SymPy
included: 1.2 to 3 s, in the first call that needs it. Here the function runs on CPU tensors that have two
elements along each dimension and strides in the same order, which decide the result's dtype and layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Pointwise(TorchDispatchMode):
    """While it is active, pointwise functions of meta tensors are described so; others are torch's.

    >>> with Pointwise():
    ...     found = torch.ones(4, 3, device="meta") * torch.ones(3, dtype=torch.float64, device="meta")
    >>> found.shape, found.stride(), found.dtype
    (torch.Size([4, 3]), (3, 1), torch.float64)
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: else torch imports its compiler, to keep it from tracing this class."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the described result of ``func``; torch's own where the layout isn't certain."""
        kwargs = kwargs or {}
        if func is torch.ops.aten.stack.default and _numbers(args[0]):
            return torch.empty(len(args[0]), dtype=args[0][0].dtype, device="meta")
        given = [*args, *kwargs.values()]
        tensors = [value for value in given if isinstance(value, Tensor)]
        if not _certain(func, given, tensors):
            return func(*args, **kwargs)
        small = func(*map(_small, args), **{name: _small(value) for name, value in kwargs.items()})
        if not isinstance(small, Tensor):
            return func(*args, **kwargs)
        shape = _broadcast([t.shape for t in tensors])
        strides = _strides(shape, small.stride())
        return torch.empty_strided(shape, strides, dtype=small.dtype, device="meta")


def _numbers(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors are numbers of one dtype on the meta device."""
    return {(t.ndim, t.dtype, t.device.type) for t in tensors} == {(0, tensors[0].dtype, "meta")}


def _certain(func: Any, given: Sequence[Any], tensors: Sequence[Tensor]) -> bool:
    """Return whether the order of strides alone decides the layout of the result."""
    name, _, overload = func.name().partition(".")
    if torch.Tag.pointwise not in func.tags or name.endswith("_") or "out" in overload:  # these write
        return False
    plain = bool | int | float | complex | torch.dtype | None
    if not tensors or not all(isinstance(value, Tensor | plain) for value in given):
        return False
    if any(t.device.type != "meta" for t in tensors):
        return False
    least = min(_broadcast([t.shape for t in tensors]), default=2)
    # Where a size is 1, torch chooses the stride; none chooses another where all are row-major.
    return least > 0 and all(map(_ordered if least > 1 else _row_major, tensors))


def _broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the common shape; ``torch.broadcast_shapes`` imports SymPy. Sizes that differ raise later."""
    sides = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in sides)[::-1]


def _ordered(tensor: Tensor) -> bool:
    """Return whether no two dimensions have one stride, unless it is 0: among equal ones sizes decide."""
    strides = _steps(tensor)
    return len(set(strides)) == len(strides)


def _steps(tensor: Tensor) -> list[int]:
    """Return the strides that lead from one element to another."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1 and step]


def _row_major(tensor: Tensor) -> bool:
    """Return whether strides are those that torch gives a new tensor, also where a size is 1."""
    return list(tensor.stride()) == _strides(tensor.shape, range(tensor.ndim, 0, -1))


def _small(value: Any) -> Any:
    """Return a tensor with two elements along each dimension; what isn't a tensor as it is."""
    if not isinstance(value, Tensor):
        return value
    order = sorted(_steps(value))
    strides = [1 << order.index(stride) if stride in order else 0 for stride in value.stride()]
    memory = torch.ones(1 << len(order), dtype=value.dtype)
    return memory.as_strided([min(size, 2) for size in value.shape], strides)


def _strides(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """Return the strides of a dense tensor whose dimensions are in this order; of equal ones size 1 first."""
    strides, step = [0] * len(shape), 1
    for i in sorted(range(len(shape)), key=lambda i: (order[i], shape[i])):
        strides[i], step = step, step * shape[i]
    return strides
