"""max_pool2d_backward on the CPU: each position adds the gradients of the windows that name its tap."""

import numpy as np
from numba import prange, types

from nxcore.plugin import Window
from nxcore_numba import stencil, threads
from nxcore_numba.half import FLOAT, KINDS, peek
from nxcore_numba.image import gather, scatter
from nxcore_numba.max_pool2d import NUMBERS
from nxcore_numba.stencil import FROM, I64, PADDING, SOURCE, STRIDE
from nxcore_numba.tile import FIRST, put, take, take_whole

NONE = np.int32(-2)
"""What no tap is numbered, nor a place off the outputs."""


@threads.jit
def three(to, tile, taps, at, numbers, more, size):
    """Write the gradients whose tap is one of three, or add them to what is there."""
    a, b, c = at
    m, n, o = numbers
    for j in range(size):
        total = take(tile, a + j, FIRST) if take_whole(taps, a + j, FIRST) == m else FLOAT
        total += take(tile, b + j, FIRST) if take_whole(taps, b + j, FIRST) == n else FLOAT
        total += take(tile, c + j, FIRST) if take_whole(taps, c + j, FIRST) == o else FLOAT
        put(to, j, peek(to, j) + total if more else total, FIRST)


@threads.jit
def seen_by(i, last, seen, line, lanes):
    """Return a tap's place in the tile and its number; past the last, those of none."""
    if i < last:
        return stencil.place_of(seen[i], 0, line, lanes), np.int32(seen[i, 3])
    return 0, NONE


@threads.jit
def spread_tile(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, index, tile, taps, best):
    """Compute one tile of the image's gradient; ``seen`` are the taps of each residue of the stride."""
    image, channel, lanes, top, left, height, width = stencil.place(index, axes, grid)
    halo, step = (stencil.reach(axes[0]), stencil.reach(axes[1])), (axes[0, STRIDE], axes[1, STRIDE])
    top, left = top + axes[0, FROM], left + axes[1, FROM]
    corner, sources = (top - halo[0], left - halo[1]), (axes[0, SOURCE], axes[1, SOURCE])
    deep, pitch = height + halo[0], width + halo[1]
    base = image * steps[0, 0] + channel * steps[0, 1]
    gather(tile, grad, base, steps[0], sources, corner, (1, 1), deep, pitch, lanes, FLOAT, kinds[0])
    base = image * steps[1, 0] + channel * steps[1, 1]
    gather(taps, offsets, base, steps[1], sources, corner, (1, 1), deep, pitch, lanes, FLOAT, kinds[1])
    base, count = image * steps[2, 0] + channel * steps[2, 1], stencil.whole(height * pitch * lanes)
    for residue in range(step[0] * step[1]):
        first, last = starts[residue], starts[residue + 1]
        for i in range(first, max(last, first + 1), 3):
            a, m = seen_by(i, last, seen, pitch * lanes, lanes)
            b, n = seen_by(i + 1, last, seen, pitch * lanes, lanes)
            c, o = seen_by(i + 2, last, seen, pitch * lanes, lanes)
            three(best, tile, taps, (a, b, c), (m, n, o), i > first, count)
        r, c = residue // step[1], residue % step[1]
        place = (top * step[0] - axes[0, PADDING] + r, left * step[1] - axes[1, PADDING] + c)
        scatter(out, base, steps[2], size, place, step, best, height, width, pitch, lanes, kinds[0])


@threads.jit
def spread_tiles(
    out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, first, last, scratch, whole
):  # fmt: skip
    """Compute the tiles from ``first`` to ``last``."""
    tile, _, _ = stencil.room(axes, grid)
    start = scratch.ctypes.data
    for index in range(first, last):
        spread_tile(
            out, grad, offsets, axes, steps, grid, seen, starts, (size[0], size[1]), (kinds[0], kinds[1]),
            index, start, whole.ctypes.data, start + 4 * tile,
        )  # fmt: skip


@threads.jit
def part(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, p, parts):
    """Compute one of so many parts of the tiles."""
    count = stencil.tiles(axes, grid)
    tile, _, best = stencil.room(axes, grid)
    scratch = np.empty(tile + best, np.float32)  # freed after its last use: the call below
    whole = np.empty(tile, np.int32)
    first, last = p * count // parts, (p + 1) * count // parts
    spread_tiles(
        out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, first, last, scratch, whole
    )  # fmt: skip


@threads.jit
def serial(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds):
    """Compute on one thread."""
    part(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, 0, 1)


@threads.jit(parallel=True)
def parallel(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds):
    """Compute on all threads."""
    parts = min(stencil.tiles(axes, grid), stencil.PARTS)
    for p in prange(parts):
        part(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, p, parts)


LIST = types.int64[::1]
SIGNATURE = types.void(I64, I64, I64, *stencil.TABLES, types.int64[:, ::1], LIST, LIST, LIST)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    window = Window.of_pool(out.shape, *problem.args[3:8])
    tables = stencil.tables(window, out, grad, offsets, out, backward=True)
    kernel = threads.team(serial, parallel, SIGNATURE, out.numel())
    size = np.array(window.image, np.int64)
    kinds = np.array([KINDS[grad.dtype], NUMBERS[offsets.element_size()]], np.int64)
    rest = (*tables, *stencil.backward_taps(window), size, kinds)

    def call(grad, offsets, *window):  # noqa: ARG001  the window is part of the plan
        result = out.empty()
        kernel(result.data_ptr(), grad.data_ptr(), offsets.data_ptr(), *rest)
        return result

    return call
