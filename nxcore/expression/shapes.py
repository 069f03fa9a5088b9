"""Shapes and layouts of an expression's results, from tensors or their descriptions, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nxcore.errors import InvalidInputError
from nxcore.expression.tree import Expression
from nxcore.spec.layout import broadcast_shapes
from nxcore.spec.problem import TensorMeta


def broadcast(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape that named tensors broadcast to.

    Raises
    ------
    InvalidInputError
        If they don't; it names two of them.
    """
    shapes = {name: tuple(t.shape) for name, t in given.items()}
    first, *others = shapes.values()
    if all(shape == first for shape in others) and all(type(n) is int for n in first):
        return first  # a compiler's sizes are symbols: comparing them would add guards
    found = first
    for name, shape in list(shapes.items())[1:]:
        try:
            found = broadcast_shapes(found, shape)
        except RuntimeError as error:
            why = f"{name} must broadcast with the tensors before it, of shape {found}, got shape {shape}"
            raise InvalidInputError(why, argument=name) from error
    return found


def elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape.

    >>> elements((2, 3))
    6
    """
    return math.prod(shape)


def laid_out(tensors: Sequence[Any], dtype: torch.dtype) -> TensorMeta | None:
    """Describe a result in the layout that torch gives it; None where torch alone determines that."""
    described = [TensorMeta.of(t) for t in tensors]
    first = described[0]
    if any(type(n) is not int or n == 0 for t in described for n in t.shape):
        return None
    if all(t.shape == first.shape and t.strides == first.strides for t in described):
        if first.is_dense() and 1 not in first.shape:  # where a size is 1, torch chooses the stride
            return TensorMeta(first.shape, first.strides, dtype, first.device)
        if not first.is_contiguous():
            return None
    if not all(t.is_contiguous() for t in described):
        return None
    shape = broadcast({str(i): t for i, t in enumerate(described)})
    return None if 1 in shape else TensorMeta.row_major(shape, dtype, first.device)


def require_numbers(expression: Expression, given: tuple[Any, ...]) -> None:
    """Raise unless every number is one that fits a double."""
    for (name, _), value in zip(expression.numbers, given, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float | torch.SymInt | torch.SymFloat):
            raise InvalidInputError(f"{name} must be a number, got {type(value).__name__}", argument=name)
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise InvalidInputError(f"{name} must fit 64 bits, got {value}", argument=name)
