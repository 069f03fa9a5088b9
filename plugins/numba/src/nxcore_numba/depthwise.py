"""Depthwise convolutions on the CPU, forward and to the image's gradient: the taps over gathered tiles.

Where channels are neighbours in a tile, its filters are repeated over a period of some vectors, so that a
tap is a product of two runs.
"""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore_numba import stencil, threads
from nxcore_numba.half import FLOAT, KINDS, peek, store
from nxcore_numba.image import gather, read, scatter
from nxcore_numba.stencil import FROM, I64, KERNEL, PADDING, SOURCE, STRIDE, place_of
from nxcore_numba.tile import FIRST, put, take

PATTERN = 256
"""The least period of filters over channels."""


@threads.jit
def period(lanes):
    """Return after how many elements of a tile filters repeat."""
    return (PATTERN + lanes - 1) // lanes * lanes if lanes > 1 else 1


@threads.jit
def longest(lanes):
    """Return the longest period of up to so many channels: the last block may have fewer."""
    return PATTERN + lanes if lanes > 1 else 1


@threads.jit
def read_filters(to, weight, step, channel, lanes, axes, kind):
    """Read the filters of a tile's channels, tap by tap."""
    size, wide = period(lanes), axes[1, KERNEL]
    for t in range(axes[0, KERNEL] * wide):
        start = channel * step[0] + t // wide * step[2] + t % wide * step[3]
        read(to, t * size, weight, start, step[0], lanes, kind)
        for j in range(t * size + lanes, (t + 1) * size):
            store(to, j, peek(to, j - lanes), FLOAT)


@threads.jit(fastmath={"contract"})
def nine(to, tile, filters, seen, i, layout, more, size):
    """Write nine taps times a filter's, or add them to what is there."""
    lanes = layout[2]
    a, b, c = place_of(seen[i], *layout), place_of(seen[i + 1], *layout), place_of(seen[i + 2], *layout)
    d, e, f = place_of(seen[i + 3], *layout), place_of(seen[i + 4], *layout), place_of(seen[i + 5], *layout)
    g, h, k = place_of(seen[i + 6], *layout), place_of(seen[i + 7], *layout), place_of(seen[i + 8], *layout)
    every = period(lanes)
    m, n, o = every * seen[i, 3], every * seen[i + 1, 3], every * seen[i + 2, 3]
    p, q, r = every * seen[i + 3, 3], every * seen[i + 4, 3], every * seen[i + 5, 3]
    s, t, u = every * seen[i + 6, 3], every * seen[i + 7, 3], every * seen[i + 8, 3]
    if lanes == 1:
        mw, nw, ow = peek(filters, m), peek(filters, n), peek(filters, o)
        pw, qw, rw = peek(filters, p), peek(filters, q), peek(filters, r)
        sw, tw, uw = peek(filters, s), peek(filters, t), peek(filters, u)
        for j in range(size):
            total = mw * take(tile, a + j, FIRST)
            total += nw * take(tile, b + j, FIRST)
            total += ow * take(tile, c + j, FIRST)
            total += pw * take(tile, d + j, FIRST)
            total += qw * take(tile, e + j, FIRST)
            total += rw * take(tile, f + j, FIRST)
            total += sw * take(tile, g + j, FIRST)
            total += tw * take(tile, h + j, FIRST)
            total += uw * take(tile, k + j, FIRST)
            put(to, j, peek(to, j) + total if more else total, FIRST)
        return
    for start in range(0, size, every):
        x, y = tile + 4 * start, to + 4 * start
        for j in range(every):
            total = take(filters, m + j, FIRST) * take(x, a + j, FIRST)
            total += take(filters, n + j, FIRST) * take(x, b + j, FIRST)
            total += take(filters, o + j, FIRST) * take(x, c + j, FIRST)
            total += take(filters, p + j, FIRST) * take(x, d + j, FIRST)
            total += take(filters, q + j, FIRST) * take(x, e + j, FIRST)
            total += take(filters, r + j, FIRST) * take(x, f + j, FIRST)
            total += take(filters, s + j, FIRST) * take(x, g + j, FIRST)
            total += take(filters, t + j, FIRST) * take(x, h + j, FIRST)
            total += take(filters, u + j, FIRST) * take(x, k + j, FIRST)
            put(y, j, peek(y, j) + total if more else total, FIRST)


@threads.jit(fastmath={"contract"})
def one(to, tile, filters, seen, i, layout, more, size):
    """Write a tap times a filter's, or add it to what is there."""
    a, every = place_of(seen[i], *layout), period(layout[2])
    m = every * seen[i, 3]
    if every == 1:
        weight = peek(filters, m)
        for j in range(size):
            total = weight * take(tile, a + j, FIRST)
            put(to, j, peek(to, j) + total if more else total, FIRST)
        return
    for start in range(0, size, every):
        x, y = tile + 4 * start, to + 4 * start
        for j in range(every):
            total = take(filters, m + j, FIRST) * take(x, a + j, FIRST)
            put(y, j, peek(y, j) + total if more else total, FIRST)


@threads.jit(fastmath={"contract"})
def three(to, tile, filters, seen, i, layout, more, size):
    """Write three taps times a filter's, or add them to what is there."""
    a, b, c = place_of(seen[i], *layout), place_of(seen[i + 1], *layout), place_of(seen[i + 2], *layout)
    every = period(layout[2])
    m, n, o = every * seen[i, 3], every * seen[i + 1, 3], every * seen[i + 2, 3]
    if every == 1:
        mw, nw, ow = peek(filters, m), peek(filters, n), peek(filters, o)
        for j in range(size):
            total = mw * take(tile, a + j, FIRST) + nw * take(tile, b + j, FIRST)
            total += ow * take(tile, c + j, FIRST)
            put(to, j, peek(to, j) + total if more else total, FIRST)
        return
    for start in range(0, size, every):
        x, y = tile + 4 * start, to + 4 * start
        for j in range(every):
            total = take(filters, m + j, FIRST) * take(x, a + j, FIRST)
            total += take(filters, n + j, FIRST) * take(x, b + j, FIRST)
            total += take(filters, o + j, FIRST) * take(x, c + j, FIRST)
            put(y, j, peek(y, j) + total if more else total, FIRST)


@threads.jit
def convolve(to, tile, filters, seen, first, last, layout, size):
    """Write the sums of the taps from ``first`` to ``last``; ``layout`` is (block, line, lanes)."""
    i = first
    while i < last:
        if last - i >= 9:
            nine(to, tile, filters, seen, i, layout, i > first, size)
            i += 9
        elif last - i >= 3:
            three(to, tile, filters, seen, i, layout, i > first, size)
            i += 3
        else:
            one(to, tile, filters, seen, i, layout, i > first, size)
            i += 1
    if first == last:
        for j in range(size):
            put(to, j, FLOAT, FIRST)


@threads.jit
def one_tile(out, x, axes, steps, seen, starts, written, backward, kind, at, tile, filters, best):
    """Convolve one tile; ``at`` is what ``stencil.place`` says of it."""
    image, channel, lanes, top, left, height, width = at
    halo, step = (stencil.reach(axes[0]), stencil.reach(axes[1])), (axes[0, STRIDE], axes[1, STRIDE])
    pads, sources = (axes[0, PADDING], axes[1, PADDING]), (axes[0, SOURCE], axes[1, SOURCE])
    if backward:
        top, left, gaps, spread = top + axes[0, FROM], left + axes[1, FROM], (1, 1), step
        corner = (top - halo[0], left - halo[1])
    else:
        gaps, spread = step, (1, 1)
        corner = (top * step[0] - pads[0], left * step[1] - pads[1])
    deep, pitch = height + halo[0], width + halo[1]
    line, base = pitch * lanes, image * steps[0, 0] + channel * steps[0, 1]
    gather(tile, x, base, steps[0], sources, corner, gaps, deep, pitch, lanes, FLOAT, kind)
    size, base = stencil.whole(height * line), image * steps[1, 0] + channel * steps[1, 1]
    for residue in range(len(starts) - 1):
        convolve(
            best, tile, filters, seen, starts[residue], starts[residue + 1], (deep * line, line, lanes), size
        )
        place = (top, left)
        if backward:
            r, c = residue // step[1], residue % step[1]
            place = (top * step[0] - pads[0] + r, left * step[1] - pads[1] + c)
        scatter(out, base, steps[1], written, place, spread, best, height, width, pitch, lanes, kind)


@threads.jit
def some_tiles(
    out, x, weight, axes, steps, grid, seen, starts, written, backward, kind, first, last, scratch
):  # fmt: skip
    """Convolve the tiles from ``first`` to ``last``."""
    tile, _, best = stencil.room(axes, grid)
    start, known = scratch.ctypes.data, -1
    filters = start + 4 * (tile + best)
    for index in range(first, last):
        at = stencil.place(index, axes, grid)
        if at[1] != known:
            known = at[1]
            read_filters(filters, weight, steps[2], known, at[2], axes, kind)
        one_tile(
            out, x, axes, steps, seen, starts, (written[0], written[1]), backward, kind, at, start,
            filters, start + 4 * tile,
        )  # fmt: skip


@threads.jit
def part(out, x, weight, axes, steps, grid, seen, starts, written, backward, kind, p, parts):
    """Convolve one of so many parts of the tiles."""
    count, taps = stencil.tiles(axes, grid), axes[0, KERNEL] * axes[1, KERNEL]
    tile, _, best = stencil.room(axes, grid)
    scratch = np.empty(tile + best + taps * longest(grid[2]), np.float32)  # freed after its last use
    some_tiles(
        out, x, weight, axes, steps, grid, seen, starts, written, backward, kind, p * count // parts,
        (p + 1) * count // parts, scratch,
    )  # fmt: skip


@threads.jit
def serial(out, x, weight, axes, steps, grid, seen, starts, written, backward, kind):
    """Convolve on one thread."""
    part(out, x, weight, axes, steps, grid, seen, starts, written, backward, kind, 0, 1)


@threads.jit(parallel=True)
def parallel(out, x, weight, axes, steps, grid, seen, starts, written, backward, kind):
    """Convolve on all threads."""
    parts = min(stencil.tiles(axes, grid), stencil.PARTS)
    for p in prange(parts):
        part(out, x, weight, axes, steps, grid, seen, starts, written, backward, kind, p, parts)


LIST = types.int64[::1]
SIGNATURE = types.void(
    I64, I64, I64, *stencil.TABLES, types.int64[:, ::1], LIST, LIST, types.boolean, I64
)  # fmt: skip


def compiled(window, out, source, weight, *, backward=False):
    """Return the kernel, taking ``(out, source, weight)`` as addresses.

    Parameters
    ----------
    out, source, weight : TensorMeta
        What is written, what is convolved and the filters.
    backward : bool
        Whether ``out`` is the image's gradient and ``source`` that of the outputs.
    """
    tables = stencil.tables(window, out, source, out, weight, backward=backward)
    if backward:
        seen, starts = stencil.backward_taps(window)
    else:
        seen = stencil.forward_taps(window)
        starts = np.array([0, len(seen)], np.int64)
    written = np.array(window.image if backward else window.outputs, np.int64)
    kernel = threads.team(serial, parallel, SIGNATURE, out.numel() * (1 + window.taps // 8))
    rest = (*tables, seen, starts, written, backward, KINDS[source.dtype])
    return lambda out, source, weight: kernel(out, source, weight, *rest)
