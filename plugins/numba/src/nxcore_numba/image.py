"""Images between memory and tiles: gathered with their padding, scattered with their rounding."""

# mypy: ignore-errors

import numpy as np

from nxcore_numba import threads
from nxcore_numba.half import load, store
from nxcore_numba.tile import DONE, load_whole, put_whole, store_whole, take, take_whole

BYTES, WHOLE, LONG = 4, 5, 6
"""The kinds of memory that hold numbers, after those of ``half.KINDS``: uint8, int32 and int64."""


@threads.jit
def read(to, at, memory, start, step, size, kind):
    """Read a run of any type and stride into a tile."""
    if kind == 0:
        if step == 1:
            for j in range(size):
                store(to, at + j, load(memory, start + j, np.float32(0)), np.float32(0))
        elif step == 2:  # known to the compiler, two steps are one vector and a shuffle
            for j in range(size):
                store(to, at + j, load(memory, start + 2 * j, np.float32(0)), np.float32(0))
        else:
            for j in range(size):
                store(to, at + j, load(memory, start + j * step, np.float32(0)), np.float32(0))
    elif kind == 1:
        if step == 1:
            for j in range(size):
                store(to, at + j, load(memory, start + j, np.uint16(0)), np.float32(0))
        else:
            for j in range(size):
                store(to, at + j, load(memory, start + j * step, np.uint16(0)), np.float32(0))
    elif kind == 2:
        if step == 1:
            for j in range(size):
                store(to, at + j, load(memory, start + j, np.int16(0)), np.float32(0))
        else:
            for j in range(size):
                store(to, at + j, load(memory, start + j * step, np.int16(0)), np.float32(0))
    elif kind == BYTES:
        if step == 1:
            for j in range(size):
                put_whole(to, at + j, load_whole(memory, start + j, np.uint8(0)), DONE)
        else:
            for j in range(size):
                put_whole(to, at + j, load_whole(memory, start + j * step, np.uint8(0)), DONE)
    else:
        for j in range(size):
            put_whole(to, at + j, load_whole(memory, start + j * step, np.int32(0)), DONE)


@threads.jit
def write(memory, start, step, tile, at, size, kind):
    """Write a run of a tile to memory of any type and stride, rounding what has to be."""
    if kind == 0:
        if step == 1:
            for j in range(size):
                store(memory, start + j, take(tile, at + j, DONE), np.float32(0))
        elif step == 2:
            for j in range(size):
                store(memory, start + 2 * j, take(tile, at + j, DONE), np.float32(0))
        else:
            for j in range(size):
                store(memory, start + j * step, take(tile, at + j, DONE), np.float32(0))
    elif kind == 1:
        if step == 1:
            for j in range(size):
                store(memory, start + j, take(tile, at + j, DONE), np.uint16(0))
        else:
            for j in range(size):
                store(memory, start + j * step, take(tile, at + j, DONE), np.uint16(0))
    elif kind == 2:
        if step == 1:
            for j in range(size):
                store(memory, start + j, take(tile, at + j, DONE), np.int16(0))
        else:
            for j in range(size):
                store(memory, start + j * step, take(tile, at + j, DONE), np.int16(0))
    elif kind == BYTES:
        if step == 1:
            for j in range(size):
                store_whole(memory, start + j, take_whole(tile, at + j, DONE), np.uint8(0))
        else:
            for j in range(size):
                store_whole(memory, start + j * step, take_whole(tile, at + j, DONE), np.uint8(0))
    else:
        for j in range(size):
            store_whole(memory, start + j * step, take_whole(tile, at + j, DONE), np.int32(0))


@threads.jit
def fill(tile, at, size, value, kind):
    """Fill part of a tile: with ``value`` or, where it holds numbers, with -1."""
    if kind < BYTES:
        for j in range(size):
            store(tile, at + j, value, np.float32(0))
    else:
        for j in range(size):
            put_whole(tile, at + j, np.int32(-1), DONE)


@threads.jit
def inside(first, gap, count, size):
    """Return which of ``count`` positions from ``first`` on, a gap apart, lie within ``size``: from, to."""
    low = min(max((-first + gap - 1) // gap, 0), count)
    return low, max(min((size - first + gap - 1) // gap, count), low)


@threads.jit
def gather(tile, memory, base, step, sizes, corner, gaps, height, width, lanes, padding, kind):
    """Read an image from ``corner`` on; each residue of the gaps is a block of height * width * lanes.

    What doesn't lie on the image is filled with ``padding``.
    """
    line = width * lanes
    runs = lanes == 1 or (step[1] == 1 and gaps[1] * step[3] == lanes)  # a row is one run of memory
    for block in range(gaps[0] * gaps[1]):
        top, left = corner[0] + block // gaps[1], corner[1] + block % gaps[1]
        low, high = inside(left, gaps[1], width, sizes[1])
        for r in range(height):
            at, y = (block * height + r) * line, top + r * gaps[0]
            seen = high - low if 0 <= y < sizes[0] else 0
            fill(tile, at, low * lanes, padding, kind)
            at += low * lanes
            fill(tile, at + seen * lanes, line - (low + seen) * lanes, padding, kind)
            start, next_one = base + y * step[2] + (left + low * gaps[1]) * step[3], gaps[1] * step[3]
            size, pace = (seen * lanes, next_one if lanes == 1 else 1) if runs else (lanes, step[1])
            for c in range(min(seen, 1) if runs else seen):
                read(tile, at + c * lanes, memory, start + c * next_one, pace, size, kind)


@threads.jit
def scatter(memory, base, step, sizes, corner, gaps, tile, height, width, pitch, lanes, kind):
    """Write a tile's first ``width`` of ``pitch`` columns to an image from ``corner`` on, gaps apart."""
    runs = lanes == 1 or (step[1] == 1 and gaps[1] * step[3] == lanes)
    low, high = inside(corner[1], gaps[1], width, sizes[1])
    next_one = gaps[1] * step[3]
    size, pace = ((high - low) * lanes, next_one if lanes == 1 else 1) if runs else (lanes, step[1])
    for r in range(height):
        y = corner[0] + r * gaps[0]
        if 0 <= y < sizes[0]:
            at = (r * pitch + low) * lanes
            start = base + y * step[2] + (corner[1] + low * gaps[1]) * step[3]
            for c in range(min(high - low, 1) if runs else high - low):
                write(memory, start + c * next_one, pace, tile, at + c * lanes, size, kind)
