"""The work of one program: every block size of this plugin, as a function of the problem's size.

There is no autotuner. It would run a kernel hundreds of times in a user's first call, and its choice would
decide the last bits of a sum. Imports no triton.
"""

from __future__ import annotations

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
"""Triton's interpreter runs the kernels on the CPU. Its cost is per program, so tiles are larger there."""

FILL = 264
"""Programs that fill a large GPU: two for each of 132 multiprocessors.

A constant, not the device's own count, so that a sum has the same bits on every device.
"""

MAX_PROGRAMS = 16 if INTERPRETED else 2 * FILL
"""Programs of a kernel that leaves one partial result each."""

VECTOR = 16  # bytes of the widest load
WARP = 32
REGISTERS = 64  # accumulators of one thread that leave room for the loads in flight
TERMS = 32768 if INTERPRETED else 4096  # of one step of a reduction: 32 a thread
WORTHWHILE = 4  # programs for one output that pay for a second launch
LARGE = 1 << 24  # terms in all that keep more programs busy, and always pay for a second launch
SHORT = 512  # terms that are not worth a second pass
LONGEST_ROW = 1024  # entries of a row that a program holds whole


def power_of_two(n: int) -> int:
    """Return the least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    """Return ``a / b``, rounded up."""
    return -(-a // b)


def flat(n: int, itemsize: int) -> tuple[int, int]:
    """Return the elements and warps of one program of an elementwise kernel.

    Parameters
    ----------
    n : int
        Elements of the output.
    itemsize : int
        Bytes of the widest element.
    """
    if INTERPRETED:
        return 2048, 4
    lane = VECTOR // itemsize
    for least, vectors, warps in ((1 << 20, 2, 4), (1 << 16, 1, 4), (0, 1, 2)):
        if n >= least:
            return lane * vectors * warps * WARP, warps
    raise AssertionError("unreachable: the last row takes every size")


def dots(n: int, count: int, itemsize: int) -> tuple[int, int, int]:
    """Return the elements, warps and programs of a kernel that adds up ``count`` products at once.

    Parameters
    ----------
    n : int
        Elements of each factor.
    count : int
        How many sums each thread keeps.
    itemsize : int
        Bytes of the widest element.
    """
    warps = 4
    lane = max(min(VECTOR // itemsize, REGISTERS // power_of_two(count)), 1)
    block = 2048 if INTERPRETED else lane * warps * WARP
    return block, warps, min(cdiv(n, block), MAX_PROGRAMS)


def reduction(outputs: int, terms: int, *, kept_inside: bool) -> tuple[int, int, int]:
    """Return the tile of one program of a reduction, and how many programs share one output.

    Parameters
    ----------
    outputs, terms : int
        How many sums there are, and of how many terms each.
    kept_inside : bool
        Neighbours in memory belong to different outputs.

    Returns
    -------
    block_outputs, block_terms : int
        Powers of two.
    parts : int
        More than 1 where a second pass must add up what the programs of one output found.
    """
    if kept_inside:
        block = min(power_of_two(outputs), 4 * WARP)
        while terms <= SHORT and block > WARP and cdiv(outputs, block) < FILL:
            block //= 2
        span = min(power_of_two(terms), TERMS // block)
    else:
        span = min(power_of_two(terms), TERMS)
        block = min(power_of_two(outputs), TERMS // span)
        while block > 1 and cdiv(outputs, block) < FILL and block * span > SHORT:
            block //= 2
    large = outputs * terms >= LARGE
    programs = 4 * FILL if large else FILL
    parts = max(min(cdiv(programs, cdiv(outputs, block)), terms // (2 * span)), 1)
    return block, span, parts if large or parts >= WORTHWHILE else 1


def rows(count: int, columns: int) -> int:
    """Return how many rows of so many columns, a power of two, one program has whole."""
    most = max((TERMS if INTERPRETED else LONGEST_ROW) // columns, 1)
    return min(power_of_two(count), most)
