"""Layouts as the kernels take them: structs of sizes and strides, and vectors.

The answers of ``accepts`` are made of this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

Strides = tuple[int, ...]

MAX_RANK = 4  # as in strided.cuh
DIMS = f"{MAX_RANK}q{2 * MAX_RANK}I2i"  # struct dims
STRIDES = f"{MAX_RANK}q"  # struct strides
NARROW = 2**31  # fewer elements are numbered in 32 bits
VECTOR = 16  # bytes of the widest load


def single(value: float) -> float:
    """Return a number as float32 holds it: what is too large is infinite."""
    return ctypes.c_float(value).value


def divides(
    width: int, sizes: Strides, strides: Sequence[Strides], repeatable: Sequence[Strides] = ()
) -> bool:
    """Return whether vectors of ``width`` elements along the innermost dimension are whole and aligned.

    Parameters
    ----------
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
