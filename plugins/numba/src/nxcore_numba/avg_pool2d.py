"""avg_pool2d on the CPU: sums along rows first, then of those down columns, then one division.

So k + k additions do what k * k would. A divisor is a row's count times a column's, or a number.
"""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore.plugin import Window
from nxcore_numba import stencil, threads
from nxcore_numba.half import FLOAT, KINDS, peek, store
from nxcore_numba.image import gather, scatter
from nxcore_numba.stencil import FROM, I64, KERNEL, PADDING, SOURCE, STRIDE, TARGET
from nxcore_numba.tile import APART, FIRST, SECOND, put, take


@threads.jit
def three(to, tile, a, b, c, more, size, token):
    """Write the sums of three taps, or add them to what is there."""
    for j in range(size):
        total = take(tile, a + j, token) + take(tile, b + j, token) + take(tile, c + j, token)
        put(to, j, peek(to, j) + total if more else total, token)


@threads.jit
def one(to, tile, a, more, size, token):
    """Write one tap, or add it to what is there."""
    for j in range(size):
        put(to, j, peek(to, j) + take(tile, a + j, token) if more else take(tile, a + j, token), token)


@threads.jit
def sums(to, tile, taps, step, block, line, size, token):
    """Write the sums of neighbouring taps: ``block`` from residue to residue of ``step``, ``line`` in one."""
    tap = 0
    while tap + 3 <= taps:
        a = tap % step * block + tap // step * line
        b = (tap + 1) % step * block + (tap + 1) // step * line
        c = (tap + 2) % step * block + (tap + 2) // step * line
        three(to, tile, a, b, c, tap > 0, size, token)
        tap += 3
    while tap < taps:
        one(to, tile, tap % step * block + tap // step * line, tap > 0, size, token)
        tap += 1
    if taps == 0:
        for j in range(size):
            put(to, j, FLOAT, token)


@threads.jit
def counted(output, axis, size, divisor, padded):
    """Return how many places of an axis a window counts; ``size`` is the image's."""
    if divisor != 0:
        return 1
    first = output * axis[STRIDE] - axis[PADDING]
    last = min(first + axis[KERNEL], size + axis[PADDING])
    if not padded:
        first, last = max(first, 0), min(last, size)
    return max(last - first, 1)  # a window that isn't there has nothing to divide


@threads.jit
def divide(tile, counts, axes, sizes, corner, height, width, pitch, lanes, divisor, padded):
    """Divide the outputs from ``corner`` on, in place; ``counts`` is scratch for a row."""
    for c in range(width):
        count = np.float32(counted(corner[1] + c, axes[1], sizes[1], divisor, padded))
        for j in range(c * lanes, (c + 1) * lanes):
            store(counts, j, count, FLOAT)
    for r in range(height):
        count = np.float32(counted(corner[0] + r, axes[0], sizes[0], divisor, padded))
        if divisor != 0:
            count = np.float32(divisor)
        at = tile + 4 * r * pitch * lanes
        for j in range(width * lanes):
            put(at, j, peek(at, j) / (count * take(counts, j, APART)), APART)


@threads.jit
def pool_tile(out, x, axes, steps, grid, divisor, padded, kind, index, tile, rows, best):
    """Pool one tile."""
    image, channel, lanes, top, left, height, width = stencil.place(index, axes, grid)
    sizes, strides = (axes[0, SOURCE], axes[1, SOURCE]), (axes[0, STRIDE], axes[1, STRIDE])
    corner = (top * strides[0] - axes[0, PADDING], left * strides[1] - axes[1, PADDING])
    deep, pitch = height + stencil.reach(axes[0]), width + stencil.reach(axes[1])
    line, base = pitch * lanes, image * steps[0, 0] + channel * steps[0, 1]
    gather(tile, x, base, steps[0], sizes, corner, strides, deep, pitch, lanes, FLOAT, kind)
    block = deep * line
    size = stencil.whole(block - stencil.reach(axes[1]) * lanes)
    for a in range(strides[0]):
        begin, to = tile + 4 * a * strides[1] * block, rows + 4 * a * block
        sums(to, begin, axes[1, KERNEL], strides[1], block, lanes, size, FIRST)
    size = stencil.whole(height * line)
    sums(best, rows, axes[0, KERNEL], strides[0], block, line, size, SECOND)
    divide(best, tile, axes, sizes, (top, left), height, width, pitch, lanes, divisor, padded)
    base = image * steps[1, 0] + channel * steps[1, 1]
    targets = (axes[0, TARGET], axes[1, TARGET])
    scatter(out, base, steps[1], targets, (top, left), (1, 1), best, height, width, pitch, lanes, kind)


@threads.jit
def pool_tiles(out, x, axes, steps, grid, divisor, padded, kind, first, last, scratch):
    """Pool the tiles from ``first`` to ``last``."""
    tile, rows, _ = stencil.room(axes, grid)
    start = scratch.ctypes.data
    for index in range(first, last):
        pool_tile(
            out, x, axes, steps, grid, divisor, padded, kind, index, start, start + 4 * tile,
            start + 4 * (tile + rows),
        )  # fmt: skip


@threads.jit
def part(out, x, axes, steps, grid, divisor, padded, kind, p, parts):
    """Pool one of so many parts of the tiles."""
    count = stencil.tiles(axes, grid)
    tile, rows, best = stencil.room(axes, grid)
    scratch = np.empty(tile + rows + best, np.float32)  # freed after its last use: the call below
    first, last = p * count // parts, (p + 1) * count // parts
    pool_tiles(out, x, axes, steps, grid, divisor, padded, kind, first, last, scratch)


@threads.jit
def serial(out, x, axes, steps, grid, divisor, padded, kind):
    """Pool on one thread."""
    part(out, x, axes, steps, grid, divisor, padded, kind, 0, 1)


@threads.jit(parallel=True)
def parallel(out, x, axes, steps, grid, divisor, padded, kind):
    """Pool on all threads."""
    parts = min(stencil.tiles(axes, grid), stencil.PARTS)
    for p in prange(parts):
        part(out, x, axes, steps, grid, divisor, padded, kind, p, parts)


SIGNATURE = types.void(I64, I64, *stencil.TABLES, I64, types.boolean, I64)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, out = problem["x"], problem.outputs
    kernel_size, stride, padding, ceil_mode, padded, divisor = problem.args[1:7]
    window = Window.of_pool(x.shape, kernel_size, stride, padding, 1, ceil_mode)
    tables = stencil.tables(window, out, x, out)
    kernel = threads.team(serial, parallel, SIGNATURE, x.numel())
    rest = (*tables, divisor or 0, bool(padded), KINDS[x.dtype])

    def call(x, *window):
        result = out.empty()
        kernel(result.data_ptr(), x.data_ptr(), *rest)
        return result

    return call


@threads.jit
def spread_tile(out, grad, axes, steps, grid, image_size, divisor, padded, kind, index, tile, rows, best):
    """Compute one tile of the image's gradient."""
    image, channel, lanes, top, left, height, width = stencil.place(index, axes, grid)
    halo, step = (stencil.reach(axes[0]), stencil.reach(axes[1])), (axes[0, STRIDE], axes[1, STRIDE])
    top, left = top + axes[0, FROM], left + axes[1, FROM]
    corner, sources = (top - halo[0], left - halo[1]), (axes[0, SOURCE], axes[1, SOURCE])
    deep, pitch = height + halo[0], width + halo[1]
    line, base = pitch * lanes, image * steps[0, 0] + channel * steps[0, 1]
    gather(tile, grad, base, steps[0], sources, corner, (1, 1), deep, pitch, lanes, FLOAT, kind)
    divide(tile, best, axes, image_size, corner, deep, pitch, pitch, lanes, divisor, padded)
    base = image * steps[1, 0] + channel * steps[1, 1]
    for c in range(step[1]):
        # Of the taps c, c + step, ... each sees an output further to the left.
        taps = max((axes[1, KERNEL] - c + step[1] - 1) // step[1], 0)
        begin, size = tile + 4 * halo[1] * lanes, stencil.whole(deep * line - halo[1] * lanes)
        sums(rows, begin, taps, 1, 0, -lanes, size, FIRST)
        for r in range(step[0]):
            taps = max((axes[0, KERNEL] - r + step[0] - 1) // step[0], 0)
            sums(best, rows + 4 * halo[0] * line, taps, 1, 0, -line, stencil.whole(height * line), SECOND)
            place = (top * step[0] - axes[0, PADDING] + r, left * step[1] - axes[1, PADDING] + c)
            scatter(out, base, steps[1], image_size, place, step, best, height, width, pitch, lanes, kind)


@threads.jit
def spread_tiles(
    out, grad, axes, steps, grid, image_size, divisor, padded, kind, first, last, scratch
):  # fmt: skip
    """Compute the tiles from ``first`` to ``last``."""
    tile, rows, _ = stencil.room(axes, grid)
    start = scratch.ctypes.data
    for index in range(first, last):
        spread_tile(
            out, grad, axes, steps, grid, (image_size[0], image_size[1]), divisor, padded, kind, index,
            start, start + 4 * tile, start + 4 * (tile + rows),
        )  # fmt: skip


@threads.jit
def part_backward(out, grad, axes, steps, grid, image_size, divisor, padded, kind, p, parts):
    """Compute one of so many parts of the tiles."""
    count = stencil.tiles(axes, grid)
    tile, rows, best = stencil.room(axes, grid)
    scratch = np.empty(tile + rows + best, np.float32)  # freed after its last use: the call below
    first, last = p * count // parts, (p + 1) * count // parts
    spread_tiles(out, grad, axes, steps, grid, image_size, divisor, padded, kind, first, last, scratch)


@threads.jit
def serial_backward(out, grad, axes, steps, grid, image_size, divisor, padded, kind):
    """Compute on one thread."""
    part_backward(out, grad, axes, steps, grid, image_size, divisor, padded, kind, 0, 1)


@threads.jit(parallel=True)
def parallel_backward(out, grad, axes, steps, grid, image_size, divisor, padded, kind):
    """Compute on all threads."""
    parts = min(stencil.tiles(axes, grid), stencil.PARTS)
    for p in prange(parts):
        part_backward(out, grad, axes, steps, grid, image_size, divisor, padded, kind, p, parts)


SIGNATURE_BACKWARD = types.void(I64, I64, *stencil.TABLES, types.int64[::1], I64, types.boolean, I64)


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    grad, out = problem["grad"], problem.outputs
    kernel_size, stride, padding, ceil_mode, padded, divisor = problem.args[2:8]
    window = Window.of_pool(out.shape, kernel_size, stride, padding, 1, ceil_mode)
    tables = stencil.tables(window, out, grad, out, backward=True)
    kernel = threads.team(serial_backward, parallel_backward, SIGNATURE_BACKWARD, out.numel())
    size = np.array(window.image, np.int64)
    rest = (*tables, size, divisor or 0, bool(padded), KINDS[grad.dtype])

    def call(grad, *window):
        result = out.empty()
        kernel(result.data_ptr(), grad.data_ptr(), *rest)
        return result

    return call
