"""conv2d on the CPU: tiles with their padding, then each term times some filters, sums in vector registers.

Terms are channels of a group times taps. A term is where it lies in a gathered tile, from an output on, so
any window is the same loop. Every output adds its terms in one order.
"""

# mypy: ignore-errors

import math
from dataclasses import dataclass

import numpy as np
from numba import prange, types

from nxcore.plugin import Window, window_of
from nxcore_numba import stencil, threads
from nxcore_numba.half import FLOAT, KINDS, load_any
from nxcore_numba.image import gather, scatter
from nxcore_numba.vectors import COLUMNS, FILTERS, multiply

I64 = types.int64
PARTS = 64
"""How many parts the tiles are shared out in, at most."""

ELEMENTS, WIDTH = 16_384, 256
"""The most elements of a gathered tile, about, and its most columns."""

SURPLUS = 2 * COLUMNS
"""Elements that the last vectors read or write past a tile."""

(
    IMAGES, GROUPS, CHANNELS, MADE, BLOCKS, TERMS, DOWN, ACROSS, HIGH, WIDE, DEEP, LINE, RESIDUES, PITCH,
    DIRECT,
) = range(15)  # fmt: skip
SOURCE, TARGET, STRIDE, PADDING, KERNEL = range(5)
TABLES = (types.int64[::1], types.int64[:, ::1], types.int64[:, ::1], types.int64[::1], I64)


@threads.jit
def pair(pairs, which):
    """Return a row of the table: down and across."""
    return pairs[which, 0], pairs[which, 1]


@threads.jit
def room(sizes):
    """Return the elements of one filter's columns: whole steps of the product."""
    return (sizes[HIGH] * sizes[PITCH] + COLUMNS - 1) // COLUMNS * COLUMNS


@threads.jit
def pack(packed, shifts, weight, bias, sizes, pairs, steps, kind):
    """Read the filters and the bias in float32: of each group and block of filters, term by term."""
    taps, wide = pairs[KERNEL, 0] * pairs[KERNEL, 1], pairs[KERNEL, 1]
    for o in range(sizes[GROUPS] * sizes[MADE]):
        block, lane = o // sizes[MADE] * sizes[BLOCKS] + o % sizes[MADE] // FILTERS, o % sizes[MADE] % FILTERS
        if bias:
            shifts[block, lane] = load_any(bias, o * steps[3, 0], kind)
        start = o // sizes[MADE] * steps[3, 1] + o % sizes[MADE] * steps[2, 0]
        for term in range(sizes[TERMS]):
            c, t = term // taps, term % taps
            at = start + c * steps[2, 1] + t // wide * steps[2, 2] + t % wide * steps[2, 3]
            packed[block, term, lane] = load_any(weight, at, kind)


@threads.jit
def one_tile(out, x, sizes, pairs, steps, terms, kind, packed, shifts, index, tile, found):
    """Convolve one tile of a group."""
    across, index = index % sizes[ACROSS], index // sizes[ACROSS]
    down, index = index % sizes[DOWN], index // sizes[DOWN]
    group, image = index % sizes[GROUPS], index // sizes[GROUPS]
    target, stride, padding = pair(pairs, TARGET), pair(pairs, STRIDE), pair(pairs, PADDING)
    top, left = down * sizes[HIGH], across * sizes[WIDE]
    height, width = min(sizes[HIGH], target[0] - top), min(sizes[WIDE], target[1] - left)
    corner = (top * stride[0] - padding[0], left * stride[1] - padding[1])
    plane = sizes[RESIDUES] * sizes[DEEP] * sizes[LINE]
    for c in range(sizes[CHANNELS]):
        base = image * steps[0, 0] + (group * sizes[CHANNELS] + c) * steps[0, 1]
        gather(
            tile + 4 * c * plane, x, base, steps[0], pair(pairs, SOURCE), corner, stride,
            sizes[DEEP], sizes[LINE], 1, FLOAT, kind,
        )  # fmt: skip
    flat = sizes[PITCH] == sizes[LINE]
    rows, columns = (1, height * sizes[LINE]) if flat else (height, width)
    for block in range(sizes[BLOCKS]):
        channel = group * sizes[MADE] + block * FILTERS
        count = min(sizes[MADE] - block * FILTERS, FILTERS)
        which = group * sizes[BLOCKS] + block
        filters, bias = packed[which].ctypes.data, shifts[which].ctypes.data
        base = image * steps[1, 0] + channel * steps[1, 1]
        to, row_step, channel_step = found, sizes[PITCH], room(sizes)
        if sizes[DIRECT]:
            to = out + 4 * (base + top * steps[1, 2] + left)
            row_step, channel_step = steps[1, 2], steps[1, 1]
        for r in range(rows):
            for j in range(0, columns, COLUMNS):
                multiply(
                    to + 4 * (r * row_step + j), channel_step, tile + 4 * (r * sizes[LINE] + j),
                    terms.ctypes.data, sizes[TERMS], filters, bias, count,
                )  # fmt: skip
        if not sizes[DIRECT]:
            for o in range(count):
                scatter(
                    out, base + o * steps[1, 1], steps[1], target, (top, left), (1, 1),
                    found + 4 * o * channel_step, height, width, sizes[PITCH], 1, kind,
                )  # fmt: skip


@threads.jit
def some_tiles(
    out, x, sizes, pairs, steps, terms, kind, packed, shifts, first, last, scratch
):  # fmt: skip
    """Convolve the tiles from ``first`` to ``last``."""
    tile = scratch.ctypes.data
    found = tile + 4 * (sizes[CHANNELS] * sizes[RESIDUES] * sizes[DEEP] * sizes[LINE] + SURPLUS)
    for index in range(first, last):
        one_tile(out, x, sizes, pairs, steps, terms, kind, packed, shifts, index, tile, found)


@threads.jit
def part(out, x, sizes, pairs, steps, terms, kind, packed, shifts, p, parts):
    """Convolve one of so many parts of the tiles."""
    count = sizes[IMAGES] * sizes[GROUPS] * sizes[DOWN] * sizes[ACROSS]
    tile = sizes[CHANNELS] * sizes[RESIDUES] * sizes[DEEP] * sizes[LINE]
    scratch = np.empty(tile + FILTERS * room(sizes) + 2 * SURPLUS, np.float32)
    some_tiles(
        out, x, sizes, pairs, steps, terms, kind, packed, shifts,
        p * count // parts, (p + 1) * count // parts, scratch,
    )  # fmt: skip


@threads.jit
def serial(out, x, weight, bias, sizes, pairs, steps, terms, kind):
    """Compute on one thread."""
    packed = np.zeros((sizes[GROUPS] * sizes[BLOCKS], sizes[TERMS], FILTERS), np.float32)
    shifts = np.zeros((sizes[GROUPS] * sizes[BLOCKS], FILTERS), np.float32)
    pack(packed, shifts, weight, bias, sizes, pairs, steps, kind)
    part(out, x, sizes, pairs, steps, terms, kind, packed, shifts, 0, 1)


@threads.jit(parallel=True)
def parallel(out, x, weight, bias, sizes, pairs, steps, terms, kind):
    """Compute on all threads."""
    packed = np.zeros((sizes[GROUPS] * sizes[BLOCKS], sizes[TERMS], FILTERS), np.float32)
    shifts = np.zeros((sizes[GROUPS] * sizes[BLOCKS], FILTERS), np.float32)
    pack(packed, shifts, weight, bias, sizes, pairs, steps, kind)
    parts = min(sizes[IMAGES] * sizes[GROUPS] * sizes[DOWN] * sizes[ACROSS], PARTS)
    for p in prange(parts):
        part(out, x, sizes, pairs, steps, terms, kind, packed, shifts, p, parts)


def whole(n):
    """Return the next multiple of what a step of the product writes."""
    return -(-n // COLUMNS) * COLUMNS


@dataclass(frozen=True)
class Layer:
    """A direct convolution: window, groups, a group's channels in and out, and strides in elements.

    ``of_filters`` are from filter to filter, channel to channel, row to row and column to column, and
    ``of_group`` from one group's filters to the next one's.
    """

    window: Window
    groups: int
    channels: int
    made: int
    images: int
    steps: tuple[int, ...]
    out_steps: tuple[int, ...]
    of_filters: tuple[int, ...]
    of_group: int


def tables(layer, of_bias, itemsize):
    """Return sizes, pairs (down, across), strides of x, out, weight and bias, and each term's place."""
    window, channels = layer.window, layer.channels
    halo = reach(window)
    residues = window.stride[0] * window.stride[1]
    wide = min(window.outputs[1], WIDTH)
    line = wide + halo[1]
    high = rows_of_tile(window, channels, line)
    deep = high + halo[0]
    by_row, flat = high * whole(wide), whole(high * line)
    direct = itemsize == 4 and layer.out_steps[3] == 1 and window.outputs[1] % wide == 0 == wide % COLUMNS
    sizes = (
        layer.images, layer.groups, channels, layer.made, -(-layer.made // FILTERS), channels * window.taps,
        -(-window.outputs[0] // high), -(-window.outputs[1] // wide), high, wide, deep, line, residues,
        whole(wide) if direct or by_row <= flat else line, direct,
    )  # fmt: skip
    pairs = (window.image, window.outputs, window.stride, window.padding, window.kernel)
    steps = (layer.steps, layer.out_steps, layer.of_filters, (of_bias, layer.of_group, 0, 0))
    terms = places(window, channels, deep, line)
    return np.array(sizes, np.int64), np.array(pairs, np.int64), np.array(steps, np.int64), terms


def reach(window):
    """Return how many steps of the stride a window's last tap is away from its first: down and across."""
    pairs = zip(window.kernel, window.dilation, window.stride, strict=True)
    return [max(k - 1, 0) * d // s for k, d, s in pairs]


def rows_of_tile(window, channels, line):
    """Return the rows of outputs of a tile, so that tiles are of one size."""
    halo = reach(window)[0]
    most = max(ELEMENTS // (channels * window.stride[0] * window.stride[1] * line) - halo, halo, 1)
    return -(-window.outputs[0] // -(-window.outputs[0] // most))


def places(window, channels, deep, line):
    """Return where each term lies in a gathered tile, from an output on."""
    taps = stencil.forward_taps(window)
    of_taps = taps[:, 0] * deep * line + taps[:, 1] * line + taps[:, 2]
    plane = window.stride[0] * window.stride[1] * deep * line
    return (np.arange(channels)[:, None] * plane + of_taps[None, :]).reshape(-1)


def bind(layer, kind, itemsize, of_bias=0):
    """Return the kernel of a direct convolution, taking ``(out, x, weight, bias)`` as addresses."""
    rest = (*tables(layer, of_bias, itemsize), kind)
    outputs = layer.images * layer.groups * layer.made * math.prod(layer.window.outputs)
    terms = layer.channels * layer.window.taps
    kernel = threads.team(serial, parallel, SIGNATURE, outputs * (1 + terms // 8))
    return lambda out, x, weight, bias: kernel(out, x, weight, bias, *rest)


SIGNATURE = types.void(I64, I64, I64, I64, *TABLES)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, weight, bias, *where, groups = problem.args
    out, made = problem.outputs, weight.shape[0] // groups
    (shape, steps), (_, out_steps) = stencil.planes(x), stencil.planes(out)
    window = window_of(x, weight, *where)
    layer = Layer(
        window, groups, weight.shape[1], made, shape[0], steps, out_steps, weight.strides,
        made * weight.strides[0],
    )  # fmt: skip
    kernel = bind(layer, KINDS[x.dtype], x.dtype.itemsize, 0 if bias is None else bias.strides[0])

    def call(x, weight, bias=None, *_):
        result = out.empty()
        kernel(result.data_ptr(), x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr())
        return result

    return call
