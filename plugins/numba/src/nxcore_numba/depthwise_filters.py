"""The filters' gradient of depthwise convolutions on the CPU: dot products of gathered tiles.

A tile of the outputs' gradient has zeros where the image's tile has its halo, so that each tap is one flat
dot product. Only where that gives NaN, as a zero times an infinity does, rows are taken one by one. Tiles
are summed up in float32, their sums in float64, in an order that shapes alone decide.
"""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore_numba import stencil, threads
from nxcore_numba.depthwise import longest, period
from nxcore_numba.half import FLOAT, KINDS, peek, store, store_any
from nxcore_numba.image import fill, gather
from nxcore_numba.stencil import I64, PADDING, SOURCE, STRIDE, TARGET, place_of
from nxcore_numba.tile import FIRST, SURPLUS, put, take

GROUPS = 64
"""How many parts the images of all channels are shared out in, about."""


@threads.jit(fastmath={"contract", "reassoc"})
def nine(grads, tile, seen, i, layout, size):
    """Return the sums of products with nine taps."""
    a, b, c = place_of(seen[i], *layout), place_of(seen[i + 1], *layout), place_of(seen[i + 2], *layout)
    d, e, f = place_of(seen[i + 3], *layout), place_of(seen[i + 4], *layout), place_of(seen[i + 5], *layout)
    g, h, k = place_of(seen[i + 6], *layout), place_of(seen[i + 7], *layout), place_of(seen[i + 8], *layout)
    m = n = o = p = q = r = s = t = u = np.float32(0)
    for j in range(size):
        y = take(grads, j, FIRST)
        m += y * take(tile, a + j, FIRST)
        n += y * take(tile, b + j, FIRST)
        o += y * take(tile, c + j, FIRST)
        p += y * take(tile, d + j, FIRST)
        q += y * take(tile, e + j, FIRST)
        r += y * take(tile, f + j, FIRST)
        s += y * take(tile, g + j, FIRST)
        t += y * take(tile, h + j, FIRST)
        u += y * take(tile, k + j, FIRST)
    return m, n, o, p, q, r, s, t, u


@threads.jit(fastmath={"contract", "reassoc"})
def one(grads, tile, at, size):
    """Return the sum of products with one tap."""
    total = np.float32(0)
    for j in range(size):
        total += take(grads, j, FIRST) * take(tile, at + j, FIRST)
    return total


@threads.jit
def flat(sums, grads, tile, seen, layout, size):
    """Write the sums of products with each tap of one channel."""
    i = 0
    while i + 9 <= len(seen):
        m, n, o, p, q, r, s, t, u = nine(grads, tile, seen, i, layout, size)
        store(sums, i, m, FLOAT)
        store(sums, i + 1, n, FLOAT)
        store(sums, i + 2, o, FLOAT)
        store(sums, i + 3, p, FLOAT)
        store(sums, i + 4, q, FLOAT)
        store(sums, i + 5, r, FLOAT)
        store(sums, i + 6, s, FLOAT)
        store(sums, i + 7, t, FLOAT)
        store(sums, i + 8, u, FLOAT)
        i += 9
    while i < len(seen):
        store(sums, i, one(grads, tile, place_of(seen[i], *layout), size), FLOAT)
        i += 1


@threads.jit(fastmath={"contract"})
def many(sums, grads, tile, seen, layout, size):
    """Write the sums of products with each tap of neighbouring channels, repeated over a period."""
    every, last = period(layout[2]), len(seen) - 1
    for i in range(len(seen) * every):
        store(sums, i, FLOAT, FLOAT)
    for i in range(0, len(seen), 3):
        a, to = place_of(seen[i], *layout), sums + 4 * i * every
        # Past the last tap, the last one again in the surplus.
        b, c = place_of(seen[min(i + 1, last)], *layout), place_of(seen[min(i + 2, last)], *layout)
        for start in range(0, size, every):
            x, y = tile + 4 * start, grads + 4 * start
            for j in range(every):
                g = take(y, j, FIRST)
                put(to, j, peek(to, j) + g * take(x, a + j, FIRST), FIRST)
                put(to, every + j, peek(to, every + j) + g * take(x, b + j, FIRST), FIRST)
                put(to, 2 * every + j, peek(to, 2 * every + j) + g * take(x, c + j, FIRST), FIRST)


@threads.jit
def careful(grads, tile, at, lane, height, width, layout):
    """Return the sum of products with one tap of one channel, and with nothing else."""
    _, line, lanes = layout
    total = np.float32(0)
    for r in range(height):
        for c in range(width):
            j = r * line + c * lanes + lane
            total += peek(grads, j) * peek(tile, at + j)
    return total


@threads.jit
def one_tile(totals, grad, x, axes, steps, grid, seen, kind, index, tile, grads, sums):
    """Add one tile's sums to ``totals``, by channel and tap."""
    image, channel, lanes, top, left, height, width = stencil.place(index, axes, grid)
    halo, step = (stencil.reach(axes[0]), stencil.reach(axes[1])), (axes[0, STRIDE], axes[1, STRIDE])
    corner = (top * step[0] - axes[0, PADDING], left * step[1] - axes[1, PADDING])
    deep, pitch = height + halo[0], width + halo[1]
    line, base = pitch * lanes, image * steps[1, 0] + channel * steps[1, 1]
    block, layout = deep * line, (deep * line, line, lanes)
    image_size = (axes[0, SOURCE], axes[1, SOURCE])
    gather(tile, x, base, steps[1], image_size, corner, step, deep, pitch, lanes, FLOAT, kind)
    base = image * steps[0, 0] + channel * steps[0, 1]
    seen_size = (axes[0, TARGET], left + width)  # what is further right belongs to the next tile
    gather(grads, grad, base, steps[0], seen_size, (top, left), (1, 1), height, pitch, lanes, FLOAT, kind)
    size, every = height * line - halo[1] * lanes, period(lanes)
    if lanes == 1:
        flat(sums, grads, tile, seen, layout, size)
    else:
        fill(grads, height * line, SURPLUS, FLOAT, 0)
        fill(tile, step[0] * step[1] * block, SURPLUS, FLOAT, 0)
        many(sums, grads, tile, seen, layout, (size + every - 1) // every * every)
    for t in range(len(seen)):
        for lane in range(lanes):
            total = FLOAT
            for j in range(t * every + lane, (t + 1) * every, lanes):
                total += peek(sums, j)
            if total != total:
                total = careful(grads, tile, place_of(seen[t], *layout), lane, height, width, layout)
            totals[lane, t] += np.float64(total)


@threads.jit
def some_tiles(totals, grad, x, axes, steps, grid, seen, kind, block, first, last, scratch):
    """Add up the tiles from ``first`` to ``last`` of one block of channels."""
    each = stencil.tiles_of_image(axes)
    tile, _, best = stencil.room(axes, grid)
    start, blocks = scratch.ctypes.data, (grid[1] + grid[2] - 1) // grid[2]
    for i in range(first, last):
        index = (i // each * blocks + block) * each + i % each
        one_tile(
            totals, grad, x, axes, steps, grid, seen, kind, index, start, start + 4 * tile,
            start + 4 * (tile + best),
        )  # fmt: skip


@threads.jit
def part(totals, grad, x, axes, steps, grid, seen, kind, task):
    """Add up one group of the tiles of one block of channels."""
    groups, blocks = len(totals), (grid[1] + grid[2] - 1) // grid[2]
    group, block = task // blocks, task % blocks
    count, channel = grid[0] * stencil.tiles_of_image(axes), block * grid[2]
    tile, _, best = stencil.room(axes, grid)
    scratch = np.empty(
        tile + best + (len(seen) + 2) * longest(grid[2]), np.float32
    )  # freed after its last use
    some_tiles(
        totals[group, channel : channel + grid[2]], grad, x, axes, steps, grid, seen, kind, block,
        group * count // groups, (group + 1) * count // groups, scratch,
    )  # fmt: skip


@threads.jit
def finish(out, step, totals, wide, kind):
    """Add up the groups in order and write the gradient."""
    groups, channels, taps = totals.shape
    for c in range(channels):
        for t in range(taps):
            total = 0.0
            for g in range(groups):
                total += totals[g, c, t]
            store_any(out, c * step[0] + t // wide * step[2] + t % wide * step[3], total, kind)


@threads.jit
def serial(out, grad, x, axes, steps, grid, seen, groups, wide, kind):
    """Compute on one thread."""
    totals = np.zeros((groups, grid[1], len(seen)), np.float64)
    for task in range(groups * ((grid[1] + grid[2] - 1) // grid[2])):
        part(totals, grad, x, axes, steps, grid, seen, kind, task)
    finish(out, steps[2], totals, wide, kind)


@threads.jit(parallel=True)
def parallel(out, grad, x, axes, steps, grid, seen, groups, wide, kind):
    """Compute on all threads."""
    totals = np.zeros((groups, grid[1], len(seen)), np.float64)
    for task in prange(groups * ((grid[1] + grid[2] - 1) // grid[2])):
        part(totals, grad, x, axes, steps, grid, seen, kind, task)
    finish(out, steps[2], totals, wide, kind)


SIGNATURE = types.void(I64, I64, I64, *stencil.TABLES, types.int64[:, ::1], I64, I64, I64)


def compiled(window, out, grad, x):
    """Return the kernel, taking ``(out, grad, x)`` as addresses; ``out`` describes the filters' gradient."""
    axes, steps, grid = stencil.tables(window, grad, grad, x, out)
    images, channels, lanes = (int(n) for n in grid)
    units = images * stencil.tiles_of_image(axes)
    groups = max(1, min(units, -(-GROUPS // -(-channels // lanes))))
    kernel = threads.team(serial, parallel, SIGNATURE, grad.numel() * (1 + window.taps // 8))
    rest = (axes, steps, grid, stencil.forward_taps(window), groups, window.kernel[1], KINDS[grad.dtype])
    return lambda out, grad, x: kernel(out, grad, x, *rest)
