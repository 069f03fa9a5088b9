"""Separable convolutions in tiles of channels by pixels: depthwise in registers, then a product of matrices.

A tile's pixels are adjacent in one image. The tensor between the convolutions is recomputed where needed.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from nxcore.plugin import TensorMeta, Window
from nxcore_triton import tile
from nxcore_triton.rounding import narrow, widen

LEAST = 16  # of each side of a product


@triton.jit
def _pixels(size, PIXELS: tl.constexpr):
    """Return the row and the column of each pixel of this program's block, and whether it is one."""
    at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    return at // size[1], at % size[1], at < size[0] * size[1]


@triton.jit
def _grid(pointer, image, channel, row, column, strides):
    """Return where channels by pixels lie."""
    planes = pointer + image.to(tl.int64) * strides[0] + (channel.to(tl.int64) * strides[1])[:, None]
    return planes + (row.to(tl.int64) * strides[2] + column.to(tl.int64) * strides[3])[None, :]


@triton.jit
def _filter(weight, channel, ok, a, b, strides):
    """Return a tap of each channel's filter."""
    at = weight + channel.to(tl.int64) * strides[0] + a * strides[1] + b * strides[2]
    return widen(tl.load(at, ok, other=0.0))


@triton.jit
def _matrix(points, made, channel, counts, strides):
    """Return the 1x1 weights of some outputs by some channels."""
    at = points + (made.to(tl.int64) * strides[0])[:, None] + (channel.to(tl.int64) * strides[1])[None, :]
    return widen(tl.load(at, (made < counts[1])[:, None] & (channel < counts[0])[None, :], other=0.0))


@triton.jit
def _between(
    x, filters, image, channel, row, column, ok, counts, size, steps, of_filter, window, RELU: tl.constexpr
):
    """Return the depthwise convolution of some channels at some outputs."""
    kernel, stride, padding, dilation = window
    known = channel < counts[0]
    total = tl.zeros([channel.shape[0], row.shape[0]], tl.float32)
    for a in range(kernel[0]):
        for b in range(kernel[1]):
            i = row * stride[0] - padding[0] + a * dilation[0]
            j = column * stride[1] - padding[1] + b * dilation[1]
            on = ok & (i >= 0) & (i < size[0]) & (j >= 0) & (j < size[1])
            at = _grid(x, image, channel, i, j, steps)
            value = widen(tl.load(at, known[:, None] & on[None, :], other=0.0))
            if RELU:
                value = tl.where(value < 0, 0.0, value)
            total += value * _filter(filters, channel, known, a, b, of_filter)[:, None]
    return total


@triton.jit
def mix(
    x,
    filters,
    points,
    out,
    counts,
    size,
    out_size,
    steps,
    of_filter,
    of_point,
    out_steps,
    window,
    RELU: tl.constexpr,
    CHANNELS: tl.constexpr,
    MADE: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write MADE channels of PIXELS outputs."""
    image = tl.program_id(0)
    row, column, ok = _pixels(out_size, PIXELS)
    made = tl.program_id(2) * MADE + tl.arange(0, MADE)
    total = tl.zeros([MADE, PIXELS], tl.float32)
    for start in range(0, counts[0], CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        u = _between(
            x, filters, image, channel, row, column, ok, counts, size, steps, of_filter, window, RELU
        )
        matrix = _matrix(points, made, channel, counts, of_point)
        total += tl.dot(matrix, u, input_precision="ieee")  # not TF32
    at = _grid(out, image, made, row, column, out_steps)
    tl.store(at, narrow(total, out.dtype.element_ty), (made < counts[1])[:, None] & ok[None, :])


@triton.jit
def unmix(
    grad,
    points,
    inner,
    counts,
    out_size,
    grad_steps,
    of_point,
    inner_steps,
    CHANNELS: tl.constexpr,
    MADE: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write the gradient of CHANNELS channels between the convolutions."""
    image = tl.program_id(0)
    row, column, ok = _pixels(out_size, PIXELS)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros([CHANNELS, PIXELS], tl.float32)
    for start in range(0, counts[1], MADE):
        made = start + tl.arange(0, MADE)
        known = (made < counts[1])[:, None] & ok[None, :]
        g = widen(tl.load(_grid(grad, image, made, row, column, grad_steps), known, other=0.0))
        matrix = _matrix(points, made, channel, counts, of_point)
        total += tl.dot(tl.trans(matrix), g, input_precision="ieee")
    at = _grid(inner, image, channel, row, column, inner_steps)
    tl.store(at, total, (channel < counts[0])[:, None] & ok[None, :])


@triton.jit
def to_image(
    inner,
    x,
    filters,
    x_grad,
    positive,
    counts,
    size,
    out_size,
    inner_steps,
    steps,
    of_filter,
    grad_steps,
    window,
    RELU: tl.constexpr,
    IMAGE: tl.constexpr,
    POSITIVE: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write the image's gradient, and what is positive in the image: dense, in float32."""
    kernel, stride, padding, dilation = window
    image = tl.program_id(0)
    row, column, ok = _pixels(size, PIXELS)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < counts[0]
    both = known[:, None] & ok[None, :]
    value = widen(tl.load(_grid(x, image, channel, row, column, steps), both, other=0.0))
    if POSITIVE:
        kept = value
        if RELU:
            kept = tl.where(value < 0, 0.0, value)
        place = (image.to(tl.int64) * counts[0] + channel.to(tl.int64)) * size[0] * size[1]
        tl.store(positive + place[:, None] + (row * size[1] + column)[None, :], kept, both)
    if IMAGE:
        total = tl.zeros([CHANNELS, PIXELS], tl.float32)
        for a in range(kernel[0]):
            for b in range(kernel[1]):
                down = row + padding[0] - a * dilation[0]
                across = column + padding[1] - b * dilation[1]
                i = down // stride[0]
                j = across // stride[1]
                on = ok & (down >= 0) & (down % stride[0] == 0) & (i < out_size[0])
                on = on & (across >= 0) & (across % stride[1] == 0) & (j < out_size[1])
                at = _grid(inner, image, channel, i, j, inner_steps)
                g = tl.load(at, known[:, None] & on[None, :], other=0.0)
                total += g * _filter(filters, channel, known, a, b, of_filter)[:, None]
        if RELU:
            total = tl.where(value <= 0, 0.0, total)
        at = _grid(x_grad, image, channel, row, column, grad_steps)
        tl.store(at, narrow(total, x_grad.dtype.element_ty), both)


@triton.jit
def to_points(
    grad,
    x,
    filters,
    parts,
    counts,
    blocks,
    span,
    size,
    out_size,
    grad_steps,
    steps,
    of_filter,
    window,
    RELU: tl.constexpr,
    CHANNELS: tl.constexpr,
    MADE: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write the part of some 1x1 weights' gradient that ``span`` blocks of pixels make."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    made = tl.program_id(2) * MADE + tl.arange(0, MADE)
    total = tl.zeros([MADE, CHANNELS], tl.float32)
    first = tl.program_id(0) * span
    for block in range(first, tl.minimum(first + span, blocks[0])):
        image = block // blocks[1]
        at = block % blocks[1] * PIXELS + tl.arange(0, PIXELS)
        row, column, ok = at // out_size[1], at % out_size[1], at < out_size[0] * out_size[1]
        u = _between(
            x, filters, image, channel, row, column, ok, counts, size, steps, of_filter, window, RELU
        )
        known = (made < counts[1])[:, None] & ok[None, :]
        g = widen(tl.load(_grid(grad, image, made, row, column, grad_steps), known, other=0.0))
        total += tl.dot(g, tl.trans(u), input_precision="ieee")
    part = tl.program_id(0).to(tl.int64) * counts[0] * counts[1]
    at = parts + part + made[:, None] * counts[0] + channel[None, :]
    tl.store(at, total, (made < counts[1])[:, None] & (channel < counts[0])[None, :])


def sides(channels: int, made: int, pixels: int) -> tuple[int, int, int]:
    """Return how many channels, outputs' channels and pixels a tile has."""
    inner, outer, across = (max(tile.power_of_two(n), LEAST) for n in (channels, made, pixels))
    if tile.INTERPRETED:
        return min(inner, 64), min(outer, 128), min(across, 1024)
    return LEAST, min(outer, 64), min(across, 64)


def of_window(window: Window) -> tuple[tuple[int, int], ...]:
    """Return what the kernels know of a window."""
    return window.kernel, window.stride, window.padding, window.dilation


def filter_steps(weight: TensorMeta) -> tuple[int, int, int]:
    """Return a filter's strides: channel, row, column."""
    return weight.strides[0], weight.strides[2], weight.strides[3]
