"""The filters' and the bias's gradients of conv2d on the CPU: products of rows, sums in vector registers.

A term is a channel of a group and a tap, which is where it lies in a gathered tile of the image. The bias's
term lies in a plane of ones. Tiles are summed up in float32, their sums in float64, in an order that shapes
alone decide.
"""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore_numba import stencil, threads
from nxcore_numba.conv2d import (
    I64,
    PADDING,
    SOURCE,
    STRIDE,
    TARGET,
    WIDTH,
    pair,
    places,
    reach,
    rows_of_tile,
)
from nxcore_numba.half import FLOAT, KINDS, peek, store_any
from nxcore_numba.image import fill, gather
from nxcore_numba.vectors import OWN, RUN, TERMS, dots

PARTS = 64
"""How many parts the tiles of all groups are shared out in, about."""

(
    IMAGES, GROUPS, CHANNELS, MADE, WANTED, DOWN, ACROSS, HIGH, WIDE, DEEP, LINE, RESIDUES, DIRECT, BIAS,
    COLUMNS,
) = range(15)  # fmt: skip
KERNEL = 4
TABLES = (types.int64[::1], types.int64[:, ::1], types.int64[:, ::1], types.int64[::1], I64, I64)


@threads.jit
def room(sizes):
    """Return the elements of a gathered tile, with its plane of ones, and of the gradients beside it."""
    plane = sizes[DEEP] * sizes[LINE]
    return (sizes[CHANNELS] * sizes[RESIDUES] + sizes[BIAS]) * plane + RUN, (
        sizes[MADE] * sizes[HIGH] * sizes[WIDE] + RUN
    )


@threads.jit
def one_tile(totals, grad, x, sizes, pairs, steps, terms, kind, group, index, tile, grads, found):
    """Add one tile's sums to ``totals``, by filter and term."""
    across, index = index % sizes[ACROSS], index // sizes[ACROSS]
    down, image = index % sizes[DOWN], index // sizes[DOWN]
    target, stride, padding = pair(pairs, TARGET), pair(pairs, STRIDE), pair(pairs, PADDING)
    top, left = down * sizes[HIGH], across * sizes[WIDE]
    height, width = min(sizes[HIGH], target[0] - top), min(sizes[WIDE], target[1] - left)
    corner = (top * stride[0] - padding[0], left * stride[1] - padding[1])
    plane = sizes[RESIDUES] * sizes[DEEP] * sizes[LINE]
    for c in range(sizes[CHANNELS]):
        base = image * steps[1, 0] + (group * sizes[CHANNELS] + c) * steps[1, 1]
        gather(
            tile + 4 * c * plane, x, base, steps[1], pair(pairs, SOURCE), corner, stride,
            sizes[DEEP], sizes[LINE], 1, FLOAT, kind,
        )  # fmt: skip
    start = image * steps[0, 0] + group * sizes[MADE] * steps[0, 1]
    if sizes[DIRECT]:
        grads = grad + 4 * (start + top * steps[0, 2] + left)
        step, line = steps[0, 1], steps[0, 2]
    else:
        step, line = height * width, width
        for o in range(sizes[MADE]):
            gather(
                grads + 4 * o * step, grad, start + o * steps[0, 1], steps[0], target, (top, left), (1, 1),
                height, width, 1, FLOAT, kind,
            )  # fmt: skip
    for first in range(0, sizes[MADE], OWN):
        count = min(sizes[MADE] - first, OWN)
        for term in range(0, sizes[WANTED], TERMS):
            dots(
                found, grads + 4 * first * step, step, line, count, tile, sizes[LINE],
                terms.ctypes.data + 8 * term, height, width,
            )  # fmt: skip
            for o in range(count):
                for t in range(min(sizes[WANTED] - term, TERMS)):
                    totals[first + o, term + t] += np.float64(peek(found, o * TERMS + t))


@threads.jit
def some_tiles(totals, grad, x, sizes, pairs, steps, terms, kind, group, first, last, scratch):
    """Add up the tiles of a group from ``first`` to ``last``."""
    tile, grads = room(sizes)
    start = scratch.ctypes.data
    ones = sizes[DEEP] * sizes[LINE] * sizes[BIAS]
    fill(start, tile - RUN - ones, ones + RUN, np.float32(1), 0)
    for index in range(first, last):
        one_tile(
            totals, grad, x, sizes, pairs, steps, terms, kind, group, index, start, start + 4 * tile,
            start + 4 * (tile + grads),
        )  # fmt: skip


@threads.jit
def part(totals, grad, x, sizes, pairs, steps, terms, kind, task):
    """Add up one part of the tiles of one group."""
    parts, group = len(totals), task % sizes[GROUPS]
    p, count = task // sizes[GROUPS], sizes[IMAGES] * sizes[DOWN] * sizes[ACROSS]
    tile, grads = room(sizes)
    scratch = np.empty(tile + grads + OWN * TERMS, np.float32)  # freed after its last use
    some_tiles(
        totals[p, group * sizes[MADE] : (group + 1) * sizes[MADE]], grad, x, sizes, pairs, steps, terms, kind,
        group, p * count // parts, (p + 1) * count // parts, scratch,
    )  # fmt: skip


@threads.jit
def finish(weight_grad, bias_grad, totals, sizes, pairs, steps, kind):
    """Add up the parts in order and write the gradients."""
    parts, filters, wanted = totals.shape
    wide, taps = sizes[COLUMNS], max(pairs[KERNEL, 0] * pairs[KERNEL, 1], 1)
    for o in range(filters):
        for term in range(wanted):
            total = 0.0
            for p in range(parts):
                total += totals[p, o, term]
            if term == sizes[CHANNELS] * taps:
                store_any(bias_grad, o, total, kind)
            else:
                c, t = term // taps, term % taps
                at = o * steps[2, 0] + c * steps[2, 1] + t // wide * steps[2, 2] + t % wide * steps[2, 3]
                store_any(weight_grad, at, total, kind)


@threads.jit
def serial(weight_grad, bias_grad, grad, x, sizes, pairs, steps, terms, parts, kind):
    """Compute on one thread."""
    totals = np.zeros((parts, sizes[GROUPS] * sizes[MADE], sizes[WANTED]), np.float64)
    for task in range(parts * sizes[GROUPS]):
        part(totals, grad, x, sizes, pairs, steps, terms, kind, task)
    finish(weight_grad, bias_grad, totals, sizes, pairs, steps, kind)


@threads.jit(parallel=True)
def parallel(weight_grad, bias_grad, grad, x, sizes, pairs, steps, terms, parts, kind):
    """Compute on all threads."""
    totals = np.zeros((parts, sizes[GROUPS] * sizes[MADE], sizes[WANTED]), np.float64)
    for task in prange(parts * sizes[GROUPS]):
        part(totals, grad, x, sizes, pairs, steps, terms, kind, task)
    finish(weight_grad, bias_grad, totals, sizes, pairs, steps, kind)


SIGNATURE = types.void(I64, I64, I64, I64, *TABLES)


def compiled(window, groups, grad, x, weight, outputs):
    """Return the kernel, taking ``(weight_grad, bias_grad, grad, x)`` as addresses.

    ``outputs`` describes the two gradients, either of which may be None.
    """
    of_filters, of_bias = outputs
    (shape, grad_steps), (_, x_steps) = stencil.planes(grad), stencil.planes(x)
    channels, made = weight.shape[1] if of_filters else 0, weight.shape[0] // groups
    halo = reach(window) if of_filters else (0, 0)
    wide = min(window.outputs[1], WIDTH)
    line = wide + halo[1]
    high = rows_of_tile(window, max(channels, 1), line)
    deep = high + halo[0]
    wanted = channels * window.taps + bool(of_bias)
    direct = grad.dtype.itemsize == 4 and grad_steps[3] == 1 and window.outputs[1] % wide == 0 == wide % RUN
    down, across = -(-window.outputs[0] // high), -(-window.outputs[1] // wide)
    residues = window.stride[0] * window.stride[1]
    sizes = (
        shape[0], groups, channels, made, wanted, down, across, high, wide, deep, line, residues, direct,
        bool(of_bias), window.kernel[1],
    )  # fmt: skip
    terms = places(window, channels, deep, line)
    if of_bias:
        terms = np.append(terms, channels * residues * deep * line)
    terms = np.append(terms, [terms[-1]] * (-wanted % TERMS)).astype(np.int64)
    pairs = (window.image, window.outputs, window.stride, window.padding, window.kernel)
    steps = (grad_steps, x_steps, of_filters.strides if of_filters else (0, 0, 0, 0))
    parts = max(1, min(shape[0] * down * across, -(-PARTS // groups)))
    kernel = threads.team(serial, parallel, SIGNATURE, grad.numel() * (1 + wanted // 8))
    rest = (
        np.array(sizes, np.int64), np.array(pairs, np.int64), np.array(steps, np.int64), terms, parts,
        KINDS[grad.dtype],
    )  # fmt: skip
    return lambda weight_grad, bias_grad, grad, x: kernel(weight_grad, bias_grad, grad, x, *rest)
