"""max_pool2d on the CPU: the largest along rows first, then of those down columns.

So k + k comparisons do what k * k would, and of equals the first in each row, then the first row, is the
first row by row. Where offsets or indices are requested, each maximum carries the number of its tap.
"""

# mypy: ignore-errors

import math

import numpy as np
from numba import prange, types

from nxcore.plugin import Window
from nxcore_numba import stencil, threads
from nxcore_numba.half import FLOAT, KINDS, peek
from nxcore_numba.image import BYTES, LONG, WHOLE, gather, scatter
from nxcore_numba.stencil import DILATION, FROM, I64, KERNEL, PADDING, SOURCE, STRIDE, TARGET
from nxcore_numba.tile import FIRST, SECOND, peek_whole, put, put_whole, store_whole, take, take_whole

LOWEST = np.float32(-math.inf)
NUMBERS = {1: BYTES, 4: WHOLE, 8: LONG}
"""The kind of memory for offsets and indices, by the bytes of one."""


@threads.jit
def beats(value, best):
    """Return whether a tap replaces the best before it."""
    return (value > best) | (value != value)


@threads.jit
def better(best, tap, value, number):
    """Return the better of two and its number."""
    wins = beats(value, best)
    return value if wins else best, number if wins else tap


@threads.jit
def values(to, tile, one, two, three, more, size, token):
    """Write the best of three, which may be the same; ``more`` begins with what is there."""
    for j in range(size):
        best = take(tile, one + j, token)
        if more:
            best = best if beats(best, peek(to, j)) else peek(to, j)
        value = take(tile, two + j, token)
        best = value if beats(value, best) else best
        value = take(tile, three + j, token)
        put(to, j, value if beats(value, best) else best, token)


@threads.jit
def along(to, taps, tile, one, two, three, numbers, more, size):
    """Write the best of three in a row and their numbers."""
    for j in range(size):
        best, tap = take(tile, one + j, FIRST), numbers[0]
        if more:
            best, tap = better(peek(to, j), peek_whole(taps, j), best, tap)
        best, tap = better(best, tap, take(tile, two + j, FIRST), numbers[1])
        best, tap = better(best, tap, take(tile, three + j, FIRST), numbers[2])
        put(to, j, best, FIRST)
        put_whole(taps, j, tap, FIRST)


@threads.jit
def down(to, taps, rows, tapped, one, two, three, numbers, more, size):
    """Write the best of the best of three rows and their numbers."""
    for j in range(size):
        best, tap = take(rows, one + j, SECOND), take_whole(tapped, one + j, SECOND) + numbers[0]
        if more:
            best, tap = better(peek(to, j), peek_whole(taps, j), best, tap)
        number = take_whole(tapped, two + j, SECOND) + numbers[1]
        best, tap = better(best, tap, take(rows, two + j, SECOND), number)
        number = take_whole(tapped, three + j, SECOND) + numbers[2]
        best, tap = better(best, tap, take(rows, three + j, SECOND), number)
        put(to, j, best, SECOND)
        put_whole(taps, j, tap, SECOND)


@threads.jit
def three(tap, axis, block, line):
    """Return three taps from ``tap`` on, the last repeated, and how far each is into the tile.

    ``block`` is the distance of the residues of the stride, ``line`` that of neighbours in a residue.
    """
    last, step, gap = axis[KERNEL] - 1, axis[STRIDE], axis[DILATION]
    a, b, c = tap, min(tap + 1, last), min(tap + 2, last)
    return (a, b, c), (
        a * gap % step * block + a * gap // step * line,
        b * gap % step * block + b * gap // step * line,
        c * gap % step * block + c * gap // step * line,
    )


@threads.jit
def first_on_image(taps, tile, axes, corner, height, width, pitch, lanes, places):
    """Assign to windows of minus infinity only their first tap on the image, not in the padding.

    If all taps of a window lie outside the image, ``places`` selects the index that torch gives for offset 0.
    """
    for r in range(height):
        y = corner[0] + r * axes[0, STRIDE]
        above = max((-y + axes[0, DILATION] - 1) // axes[0, DILATION], 0)
        for c in range(width):
            x = corner[1] + c * axes[1, STRIDE]
            left = max((-x + axes[1, DILATION] - 1) // axes[1, DILATION], 0)
            if above == 0 and left == 0:
                break
            tap = np.int32(above * axes[1, KERNEL] + left)
            on_image = y + above * axes[0, DILATION] < axes[0, SOURCE]
            on_image &= x + left * axes[1, DILATION] < axes[1, SOURCE]
            if not (on_image or places):
                tap = np.int32(0)
            for j in range((r * pitch + c) * lanes, (r * pitch + c + 1) * lanes):
                if peek(tile, j) == LOWEST:
                    put_whole(taps, j, tap, SECOND)


@threads.jit
def write_indices(memory, base, step, corner, axes, taps, places, height, width, pitch, lanes):
    """Write int64 places on the plane; ``places`` holds those of the taps from the window's corner on."""
    for r in range(height):
        row = (corner[0] + r) * axes[0, STRIDE] - axes[0, PADDING]
        for c in range(width):
            column = (corner[1] + c) * axes[1, STRIDE] - axes[1, PADDING]
            first = row * axes[1, SOURCE] + column
            at = base + (corner[0] + r) * step[2] + (corner[1] + c) * step[3]
            for j in range(lanes):
                tap = peek_whole(taps, (r * pitch + c) * lanes + j)
                store_whole(memory, at + j * step[1], np.int64(first + places[tap]), np.int64(0))


@threads.jit
def pool_tile(
    out, numbers, x, axes, steps, grid, places, kind, number_kind, index, tile, rows, tapped, best, taps
):
    """Pool one tile; ``numbers`` is 0 where no offsets or indices are requested."""
    image, channel, lanes, top, left, height, width = stencil.place(index, axes, grid)
    ones, sizes = (1, 1), (axes[0, SOURCE], axes[1, SOURCE])
    strides = (axes[0, STRIDE], axes[1, STRIDE])
    corner = (top * strides[0] - axes[0, PADDING], left * strides[1] - axes[1, PADDING])
    deep, pitch = height + stencil.reach(axes[0]), width + stencil.reach(axes[1])
    line, base = pitch * lanes, image * steps[0, 0] + channel * steps[0, 1]
    gather(tile, x, base, steps[0], sizes, corner, strides, deep, pitch, lanes, LOWEST, kind)
    block = deep * line
    for a in range(strides[0]):
        size = stencil.whole(block - stencil.reach(axes[1]) * lanes)
        begin, to, to_tap = tile + 4 * a * strides[1] * block, rows + 4 * a * block, tapped + 4 * a * block
        for tap in range(0, axes[1, KERNEL], 3):
            number, at = three(tap, axes[1], block, lanes)
            if numbers == 0:
                values(to, begin, at[0], at[1], at[2], tap > 0, size, FIRST)
            else:
                each = (np.int32(number[0]), np.int32(number[1]), np.int32(number[2]))
                along(to, to_tap, begin, at[0], at[1], at[2], each, tap > 0, size)
    size, base = stencil.whole(height * line), image * steps[1, 0] + channel * steps[1, 1]
    for tap in range(0, axes[0, KERNEL], 3):
        number, at = three(tap, axes[0], block, line)
        if numbers == 0:
            values(best, rows, at[0], at[1], at[2], tap > 0, size, SECOND)
        else:
            k = axes[1, KERNEL]
            each = (np.int32(number[0] * k), np.int32(number[1] * k), np.int32(number[2] * k))
            down(best, taps, rows, tapped, at[0], at[1], at[2], each, tap > 0, size)
    targets = (axes[0, TARGET], axes[1, TARGET])
    scatter(out, base, steps[1], targets, (top, left), ones, best, height, width, pitch, lanes, kind)
    if numbers != 0:
        base = image * steps[2, 0] + channel * steps[2, 1]
        first_on_image(taps, best, axes, corner, height, width, pitch, lanes, number_kind == LONG)
        if number_kind == LONG:
            write_indices(
                numbers, base, steps[2], (top, left), axes, taps, places, height, width, pitch, lanes
            )
        else:
            scatter(
                numbers, base, steps[2], targets, (top, left), ones, taps, height, width, pitch, lanes,
                number_kind,
            )  # fmt: skip


@threads.jit
def pool_tiles(out, numbers, x, axes, steps, grid, places, kind, number_kind, first, last, scratch, whole):
    """Pool the tiles from ``first`` to ``last``."""
    tile, rows, _ = stencil.room(axes, grid)
    start = scratch.ctypes.data
    for index in range(first, last):
        pool_tile(
            out, numbers, x, axes, steps, grid, places, kind, number_kind, index, start, start + 4 * tile,
            whole.ctypes.data, start + 4 * (tile + rows), whole.ctypes.data + 4 * rows,
        )  # fmt: skip


@threads.jit
def part(out, numbers, x, axes, steps, grid, places, kind, number_kind, p, parts):
    """Pool one of so many parts of the tiles."""
    count = stencil.tiles(axes, grid)
    tile, rows, best = stencil.room(axes, grid)
    scratch = np.empty(tile + rows + best, np.float32)  # freed after its last use: the call below
    whole = np.empty(rows + best if numbers != 0 else 0, np.int32)
    first, last = p * count // parts, (p + 1) * count // parts
    pool_tiles(out, numbers, x, axes, steps, grid, places, kind, number_kind, first, last, scratch, whole)


SIGNATURE = types.void(I64, I64, I64, *stencil.TABLES, types.int64[::1], I64, I64)


@threads.jit
def serial(out, numbers, x, axes, steps, grid, places, kind, number_kind):
    """Pool on one thread."""
    part(out, numbers, x, axes, steps, grid, places, kind, number_kind, 0, 1)


@threads.jit(parallel=True)
def parallel(out, numbers, x, axes, steps, grid, places, kind, number_kind):
    """Pool on all threads."""
    parts = min(stencil.tiles(axes, grid), stencil.PARTS)
    for p in prange(parts):
        part(out, numbers, x, axes, steps, grid, places, kind, number_kind, p, parts)


def compiled(problem, out, numbers):
    """Return the kernel, taking ``(out, numbers, x)`` as addresses; ``numbers`` may be None."""
    x = problem["x"]
    window = Window.of_pool(x.shape, *problem.args[1:6])
    tables = stencil.tables(window, out, x, out, numbers or out)
    (high, wide), (_, row) = window.kernel, window.image
    places = np.array(
        [a * window.dilation[0] * row + b * window.dilation[1] for a in range(high) for b in range(wide)],
        np.int64,
    )
    kernel = threads.team(serial, parallel, SIGNATURE, x.numel())
    kind = KINDS[x.dtype]
    number_kind = NUMBERS[numbers.dtype.itemsize] if numbers else BYTES
    return lambda out, numbers, x: kernel(out, numbers, x, *tables, places, kind, number_kind)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    if isinstance(problem.outputs, tuple):
        return plan_with_offsets(problem)
    out = problem.outputs
    kernel = compiled(problem, out, None)

    def call(x, *window):
        result = out.empty()
        kernel(result.data_ptr(), 0, x.data_ptr())
        return result

    return call


def plan_with_offsets(problem):
    """Return a callable for calls that return offsets or indices too."""
    out, numbers = problem.outputs
    kernel = compiled(problem, out, numbers)

    def call(x, *window):
        result, taps = out.empty(), numbers.empty()
        kernel(result.data_ptr(), taps.data_ptr(), x.data_ptr())
        return result, taps

    return call


NONE = np.int32(-2)
"""Marks the absence of a tap. No tap has this number, nor a place outside the outputs."""


@threads.jit
def three_backward(to, tile, taps, at, numbers, more, size):
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
            three_backward(best, tile, taps, (a, b, c), (m, n, o), i > first, count)
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
def part_backward(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, p, parts):
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
def serial_backward(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds):
    """Compute on one thread."""
    part_backward(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, 0, 1)


@threads.jit(parallel=True)
def parallel_backward(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds):
    """Compute on all threads."""
    parts = min(stencil.tiles(axes, grid), stencil.PARTS)
    for p in prange(parts):
        part_backward(out, grad, offsets, axes, steps, grid, seen, starts, size, kinds, p, parts)


LIST = types.int64[::1]
SIGNATURE_BACKWARD = types.void(I64, I64, I64, *stencil.TABLES, types.int64[:, ::1], LIST, LIST, LIST)


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    window = Window.of_pool(out.shape, *problem.args[3:8])
    tables = stencil.tables(window, out, grad, offsets, out, backward=True)
    kernel = threads.team(serial_backward, parallel_backward, SIGNATURE_BACKWARD, out.numel())
    size = np.array(window.image, np.int64)
    kinds = np.array([KINDS[grad.dtype], NUMBERS[offsets.element_size()]], np.int64)
    rest = (*tables, *stencil.backward_taps(window), size, kinds)

    def call(grad, offsets, *window):
        result = out.empty()
        kernel(result.data_ptr(), grad.data_ptr(), offsets.data_ptr(), *rest)
        return result

    return call
