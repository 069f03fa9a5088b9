"""avg_pool2d_backward on the CPU: the divided gradients' sums along rows, then down columns.

A position in steps of the stride lies in the same windows as its neighbours of the same residue, so each
residue of the image is a sum of neighbouring outputs.
"""

import numpy as np
from numba import prange, types

from nxcore.plugin import Window
from nxcore_numba import stencil, threads
from nxcore_numba.avg_pool2d import divide, sums
from nxcore_numba.half import FLOAT, KINDS
from nxcore_numba.image import gather, scatter
from nxcore_numba.stencil import FROM, I64, KERNEL, PADDING, SOURCE, STRIDE
from nxcore_numba.tile import FIRST, SECOND


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
def part(out, grad, axes, steps, grid, image_size, divisor, padded, kind, p, parts):
    """Compute one of so many parts of the tiles."""
    count = stencil.tiles(axes, grid)
    tile, rows, best = stencil.room(axes, grid)
    scratch = np.empty(tile + rows + best, np.float32)  # freed after its last use: the call below
    first, last = p * count // parts, (p + 1) * count // parts
    spread_tiles(out, grad, axes, steps, grid, image_size, divisor, padded, kind, first, last, scratch)


@threads.jit
def serial(out, grad, axes, steps, grid, image_size, divisor, padded, kind):
    """Compute on one thread."""
    part(out, grad, axes, steps, grid, image_size, divisor, padded, kind, 0, 1)


@threads.jit(parallel=True)
def parallel(out, grad, axes, steps, grid, image_size, divisor, padded, kind):
    """Compute on all threads."""
    parts = min(stencil.tiles(axes, grid), stencil.PARTS)
    for p in prange(parts):
        part(out, grad, axes, steps, grid, image_size, divisor, padded, kind, p, parts)


SIGNATURE = types.void(I64, I64, *stencil.TABLES, types.int64[::1], I64, types.boolean, I64)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    grad, out = problem["grad"], problem.outputs
    kernel_size, stride, padding, ceil_mode, padded, divisor = problem.args[2:8]
    window = Window.of_pool(out.shape, kernel_size, stride, padding, 1, ceil_mode)
    tables = stencil.tables(window, out, grad, out, backward=True)
    kernel = threads.team(serial, parallel, SIGNATURE, out.numel())
    size = np.array(window.image, np.int64)
    rest = (*tables, size, divisor or 0, bool(padded), KINDS[grad.dtype])

    def call(grad, *window):  # noqa: ARG001  the window is part of the plan
        result = out.empty()
        kernel(result.data_ptr(), grad.data_ptr(), *rest)
        return result

    return call
