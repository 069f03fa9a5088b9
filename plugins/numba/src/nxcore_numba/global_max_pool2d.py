"""global_max_pool2d on the CPU: a maximum of integers where pixels lie closest, lanes where channels do.

Elements become integers that compare as they do, NaN above all. Where offsets are requested, the pixel's
number stands below: what comes first is more, of NaN what comes last. So it is the largest of integers, which
needs no order. Channels that lie closest each keep their own best and its number, from pixel to pixel.
"""

# mypy: ignore-errors

import math

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from nxcore.plugin import Reduction
from nxcore_numba import threads
from nxcore_numba.half import FLOAT, TOKENS, load, peek, scratch, store, type_of
from nxcore_numba.max_pool2d import beats
from nxcore_numba.tile import load_whole, peek_whole, store_whole

LOWEST, WHOLE = np.float32(-math.inf), np.int32(0)
NAN = np.int32(0x7FFFFFFF)
"""The integer of NaN, and the bits below a sign."""

TILE = 1024
"""Neighbouring channels that share a pass over the pixels."""

GROUPS = 256
"""The most pieces that the tasks are shared out in."""


@intrinsic
def bits(typingctx, value):
    """Return the bits of a float32."""
    return types.int32(types.float32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.IntType(32)
    )


@intrinsic
def of_bits(typingctx, value):
    """Return the float32 of these bits."""
    return types.float32(types.int32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.FloatType()
    )


@threads.jit
def flip(whole):
    """Go from bits to an integer that compares as the number does, or back."""
    return np.int32(whole ^ ((whole >> np.int32(31)) & NAN))


@threads.jit
def ordered(value):
    """Return an integer that compares as an element does; zeros of both signs are one."""
    return NAN if value != value else flip(bits(value + FLOAT))


@threads.jit
def numbered(value, number):
    """Return an integer that compares as an element and then its number do."""
    whole = ordered(value)
    return np.int64(whole) << 32 | np.int64(number if whole == NAN else NAN - number)


@threads.jit
def largest(x, base, step, size, top, token):
    """Return the larger of ``top`` and a row of pixels: as int64, for LLVM loads no vectors for an int32."""
    for j in range(size):
        top = max(top, np.int64(ordered(load(x, base + j * step, token))))
    return top


@threads.jit
def largest_numbered(x, base, step, first, size, top, token):
    """Return the larger of ``top`` and a row of pixels, numbered from ``first``."""
    for j in range(size):
        top = max(top, numbered(load(x, base + j * step, token), first + j))
    return top


@threads.jit
def clear(best, taps, size):
    """Begin with what every element replaces but minus infinity, which the first element stands for."""
    for j in range(size):
        store(best, j, LOWEST, FLOAT)
    if taps != 0:
        for j in range(size):
            store_whole(taps, j, WHOLE, WHOLE)


@threads.jit
def fold(best, taps, x, at, number, size, token):
    """Let each lane's next element replace its best, and ``number`` that of its best if ``taps`` isn't 0."""
    if taps == 0:
        for j in range(size):
            value, was = load(x, at + j, token), peek(best, j)
            store(best, j, value if beats(value, was) else was, FLOAT)
    else:
        for j in range(size):
            value, was = load(x, at + j, token), peek(best, j)
            wins = beats(value, was)
            store(best, j, value if wins else was, FLOAT)
            store_whole(taps, j, number if wins else peek_whole(taps, j), WHOLE)


@threads.jit
def by_pixels(out, offsets, x, kept, gone, first, last, token):
    """Write the channels from ``first`` to ``last``."""
    width, step = gone[1, 0], gone[1, 1]
    for o in range(first, last):
        i, j = o // kept[1, 0], o % kept[1, 0]
        base, place = i * kept[0, 1] + j * kept[1, 1], i * kept[0, 2] + j * kept[1, 2]
        top = np.int64(-0x8000000000000000)
        for r in range(gone[0, 0]):
            at, number = base + r * gone[0, 1], r * width
            # A step that is known, so that vectors are loaded.
            if offsets == 0 and step == 1:
                top = largest(x, at, 1, width, top, token)
            elif offsets == 0:
                top = largest(x, at, step, width, top, token)
            elif step == 1:
                top = largest_numbered(x, at, 1, number, width, top, token)
            else:
                top = largest_numbered(x, at, step, number, width, top, token)
        whole = np.int32(top)
        if offsets != 0:
            whole, number = np.int32(top >> 32), np.int32(top & NAN)
            store_whole(offsets, place, number if whole == NAN else np.int32(NAN - number), WHOLE)
        store(out, place, of_bits(flip(whole)), token)


@threads.jit
def by_channels(out, offsets, x, kept, gone, first, last, token):
    """Write the tiles of channels from ``first`` to ``last``."""
    best, taps = scratch(TILE), scratch(TILE)
    if offsets == 0:
        taps = 0
    channels = kept[1, 0]
    tiles = (channels + TILE - 1) // TILE
    for task in range(first, last):
        image, start = task // tiles, (task % tiles) * TILE
        base, size = image * kept[0, 1] + start, min(TILE, channels - start)
        clear(best, taps, size)
        for r in range(gone[0, 0]):
            for c in range(gone[1, 0]):
                at, number = base + r * gone[0, 1] + c * gone[1, 1], np.int32(r * gone[1, 0] + c)
                fold(best, taps, x, at, number, size, token)
        place = image * kept[0, 2] + start * kept[1, 2]
        for j in range(size):
            store(out, place + j * kept[1, 2], peek(best, j), token)
        if offsets != 0:
            for j in range(size):
                store_whole(offsets, place + j * kept[1, 2], peek_whole(taps, j), WHOLE)


@threads.jit
def tasks(out, offsets, x, kept, gone, outer, first, last, token):
    """Do tasks of either way."""
    if outer:
        by_channels(out, offsets, x, kept, gone, first, last, token)
    else:
        by_pixels(out, offsets, x, kept, gone, first, last, token)


@threads.jit
def serial(out, offsets, x, kept, gone, outer, count, token):
    """Pool on one thread."""
    tasks(out, offsets, x, kept, gone, outer, 0, count, token)


@threads.jit(parallel=True)
def parallel(out, offsets, x, kept, gone, outer, count, token):
    """Pool on all threads: ``count`` tasks in groups, each of neighbouring tasks."""
    groups = min(count, GROUPS)
    for g in prange(groups):
        tasks(out, offsets, x, kept, gone, outer, g * count // groups, (g + 1) * count // groups, token)


def compiled(problem):
    """Return the kernel, taking ``(out, offsets, x)`` as addresses; that of offsets may be 0."""
    x, reduction = problem["x"], Reduction.of_planes(problem)
    outer = bool(reduction.kept) and reduction.kept[-1][1] == 1
    kept = np.array([(1, 0, 0)] * (2 - len(reduction.kept)) + list(reduction.kept), np.int64)
    gone = np.array([(1, 0)] * (2 - len(reduction.reduced)) + list(reduction.reduced), np.int64)
    count = int(kept[0, 0]) * (-(-int(kept[1, 0]) // TILE) if outer else int(kept[1, 0]))
    whole, grid = types.int64, types.int64[:, ::1]
    signature = types.void(whole, whole, whole, grid, grid, types.boolean, whole, type_of(x.dtype))
    kernel, token = threads.team(serial, parallel, signature, x.numel()), TOKENS[x.dtype]
    return lambda out, offsets, x: kernel(out, offsets, x, kept, gone, outer, count, token)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, kernel = problem.outputs, compiled(problem)

    def call(x):
        result = out.empty()
        kernel(result.data_ptr(), 0, x.data_ptr())
        return result

    return call


def plan_with_offsets(problem):
    """Return a callable for calls like ``problem``."""
    (out, offsets), kernel = problem.outputs, compiled(problem)

    def call(x):
        result, taps = out.empty(), offsets.empty()
        kernel(result.data_ptr(), taps.data_ptr(), x.data_ptr())
        return result, taps

    return call


WHOLE_BACKWARD = np.int32(0)

PIECE = 8192
"""Approximate number of elements that are cleared together, so that they stay in the L1 or L2 cache."""

PIXELS = 64
"""The fewest pixels of a piece: each piece checks for every channel whether its maximum is one of them."""

GROUPS_BACKWARD = 256
"""The largest number of pieces that the work is split into."""


@threads.jit
def pieces(out, grad, offsets, sizes, steps, first, last, token):
    """Write the pieces from ``first`` to ``last``: some images, or some pixels of one."""
    images, pixels, channels, size, many, planes = sizes
    each = (pixels + size - 1) // size
    for task in range(first, last):
        image, start = task // each * many, task % each * size
        after, end = min(image + many, images), min(start + size, pixels)
        base = (image * pixels + start) * channels
        for j in range((after - image - 1) * pixels * channels + (end - start) * channels):
            store(out, base + j, FLOAT, token)
        for i in range(image, after):
            above, plane = i // planes, i % planes
            shares, places = (
                above * steps[0, 0] + plane * steps[0, 1],
                above * steps[1, 0] + plane * steps[1, 1],
            )
            for c in range(channels):
                pixel = load_whole(offsets, places + c * steps[1, 1], WHOLE_BACKWARD)
                if start <= pixel < end:
                    share = load(grad, shares + c * steps[0, 1], token)
                    store(out, (i * pixels + pixel) * channels + c, share, token)


@threads.jit
def serial_backward(out, grad, offsets, sizes, steps, count, token):
    """Write on one thread."""
    pieces(out, grad, offsets, sizes, steps, 0, count, token)


@threads.jit(parallel=True)
def parallel_backward(out, grad, offsets, sizes, steps, count, token):
    """Write on all threads."""
    groups = min(count, GROUPS_BACKWARD)
    for g in prange(groups):
        pieces(out, grad, offsets, sizes, steps, g * count // groups, (g + 1) * count // groups, token)


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    planes, (high, wide) = out.shape[-3], out.shape[-2:]
    images, pixels, channels = out.numel() // (planes * high * wide), high * wide, planes
    above = 1
    if out.is_contiguous():  # then each channel is an image of one
        images, channels, above = images * planes, 1, planes
    size = max(PIECE // channels, PIXELS)
    many = max(PIECE // (channels * pixels), 1)
    sizes = (images, pixels, channels, size, many, above)
    steps = np.array([(0, *m.strides)[-4:-2] for m in (grad, offsets)], np.int64)
    count, whole = -(-images // many) * -(-pixels // size), types.int64
    signature = types.void(
        whole, whole, whole, types.UniTuple(whole, 6), types.int64[:, ::1], whole, type_of(grad.dtype)
    )
    kernel, token = (
        threads.team(serial_backward, parallel_backward, signature, out.numel()),
        TOKENS[grad.dtype],
    )

    def call(grad, offsets, *size):
        result = out.empty()
        kernel(result.data_ptr(), grad.data_ptr(), offsets.data_ptr(), sizes, steps, count, token)
        return result

    return call
