"""Layouts as data: which tensors lie in memory alike, the fewest dimensions that say the rest, and vectors.

The answers of ``accepts`` are made of this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from nxcore.plugin import TensorMeta

Strides = tuple[int, ...]

MAX_RANK = 4  # as in strided.cuh
DIMS = f"{MAX_RANK}q{2 * MAX_RANK}I2i"  # struct dims
STRIDES = f"{MAX_RANK}q"  # struct strides
NARROW = 2**31  # fewer elements are numbered in 32 bits
VECTOR = 16  # bytes of the widest load


def single(value: float) -> float:
    """Return a number as float32 holds it: what is too large is infinite."""
    return ctypes.c_float(value).value


def alike(*metas: TensorMeta) -> bool:
    """Tell whether element i in memory of one tensor is element i in memory of all, without gaps."""
    first = metas[0]
    return first.is_dense() and all(
        m.extent == first.extent and m.strides_of_extent == first.strides_of_extent for m in metas
    )


def overlaps(meta: TensorMeta) -> bool:
    """Tell whether two elements may share memory: then no kernel may write there."""
    reach = 0
    for stride, size in sorted(zip(meta.strides_of_extent, meta.extent, strict=True)):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def broadcast_strides(meta: TensorMeta, shape: Sequence[int]) -> Strides:
    """Return the strides of ``meta`` expanded to ``shape``: 0 where it is repeated."""
    lead = len(shape) - meta.ndim
    own = (0 if n == 1 else s for n, s in zip(meta.shape, meta.strides, strict=True))
    return (*(0,) * lead, *own)


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> tuple[Strides, tuple[Strides, ...]]:
    """Describe strided operands of one shape in the fewest dimensions.

    Dimensions of size 1 are dropped, the others put in the memory order of the first operand,
    outermost first, and neighbours merged where every operand's strides allow.

    Parameters
    ----------
    shape : sequence of int
    *strides : sequence of int
        One per operand.

    Returns
    -------
    sizes : tuple of int
    strides : tuple of tuple of int
        One per operand.
    """
    axes = [(n, s) for n, *s in zip(shape, *strides, strict=True) if n != 1]
    axes.sort(key=lambda axis: -axis[1][0])
    merged: list[tuple[int, list[int]]] = []
    for n, s in axes:
        if merged and all(outer == n * inner for outer, inner in zip(merged[-1][1], s, strict=True)):
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    sizes = tuple(n for n, _ in merged)
    return sizes, tuple(tuple(s[k] for _, s in merged) for k in range(len(strides)))


def divides(
    width: int, sizes: Strides, strides: Sequence[Strides], repeatable: Sequence[Strides] = ()
) -> bool:
    """Tell whether vectors of ``width`` elements along the innermost dimension are whole and aligned.

    Parameters
    ----------
    width : int
    sizes : tuple of int
        Outermost first.
    strides : sequence of tuple of int
        Of operands that are loaded or stored in vectors.
    repeatable : sequence of tuple of int
        Of operands that may also be repeated along the innermost dimension.
    """
    if not sizes or sizes[-1] % width:
        return False
    loaded = (*strides, *(s for s in repeatable if s[-1]))
    return all(s[-1] == 1 and all(outer % width == 0 for outer in s[:-1]) for s in loaded)


def widths(itemsize: int) -> tuple[int, int]:
    """Return the numbers of elements that are worth a vector, most first."""
    return VECTOR // itemsize, VECTOR // itemsize // 2


def in_vectors(width: int, sizes: Strides, strides: Sequence[Strides]) -> tuple[Strides, tuple[Strides, ...]]:
    """Count the innermost dimension in vectors of ``width`` elements."""
    if width == 1 or not sizes:
        return sizes, tuple(strides)
    return (*sizes[:-1], sizes[-1] // width), tuple((*s[:-1], s[-1] * width) for s in strides)


def dims(sizes: Strides) -> tuple[int, ...]:
    """Return the values of a kernel's ``dims``.

    Division by multiplication: Granlund and Montgomery 1994.
    """
    total, magics, shifts = 1, [], []
    for n in sizes:
        total *= n
    for n in reversed(sizes):
        shift = (n - 1).bit_length()
        magics.append((2**32 * (2**shift - n) // n + 1) % 2**32)
        shifts.append(shift % 32)
    rank = len(sizes)
    spare = (1,) * (MAX_RANK - rank)
    return (*sizes[::-1], *spare, *magics, *spare, *shifts, *spare, rank, int(total >= NARROW))


def steps(strides: Strides) -> tuple[int, ...]:
    """Return the values of a kernel's ``strides``."""
    return (*strides[::-1], *(0,) * (MAX_RANK - len(strides)))
