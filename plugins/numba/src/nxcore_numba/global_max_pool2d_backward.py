"""global_max_pool2d_backward on the CPU: pieces of an image are cleared in the cache, and filled there."""

import numpy as np
from numba import prange, types

from nxcore_numba import threads
from nxcore_numba.half import FLOAT, TOKENS, load, store, type_of
from nxcore_numba.tile import load_whole

WHOLE = np.int32(0)

PIECE = 8192
"""Elements that are cleared together, about: they stay in the nearest caches."""

PIXELS = 64
"""Pixels of a piece, at least: each piece asks every channel whether it won one of them."""

GROUPS = 256
"""The most pieces of work that are shared out."""


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
                pixel = load_whole(offsets, places + c * steps[1, 1], WHOLE)
                if start <= pixel < end:
                    share = load(grad, shares + c * steps[0, 1], token)
                    store(out, (i * pixels + pixel) * channels + c, share, token)


@threads.jit
def serial(out, grad, offsets, sizes, steps, count, token):
    """Write on one thread."""
    pieces(out, grad, offsets, sizes, steps, 0, count, token)


@threads.jit(parallel=True)
def parallel(out, grad, offsets, sizes, steps, count, token):
    """Write on all threads."""
    groups = min(count, GROUPS)
    for g in prange(groups):
        pieces(out, grad, offsets, sizes, steps, g * count // groups, (g + 1) * count // groups, token)


def plan(problem):
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
    kernel, token = threads.team(serial, parallel, signature, out.numel()), TOKENS[grad.dtype]

    def call(grad, offsets, *size):  # noqa: ARG001  it is part of the plan
        result = out.empty()
        kernel(result.data_ptr(), grad.data_ptr(), offsets.data_ptr(), sizes, steps, count, token)
        return result

    return call
