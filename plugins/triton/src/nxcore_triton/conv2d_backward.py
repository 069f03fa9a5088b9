"""conv2d_backward: the image's gradient by conv2d's programs, the other two as sums in two steps.

A program of the filters' gradient has some filters, a channel, a row of taps, and a part of the pixels. It
keeps a sum for each tap in registers. A second launch adds up the parts in fixed order.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Reduction, TensorMeta, turned_windows, window_of
from nxcore_triton import conv2d
from nxcore_triton import tile as blocks
from nxcore_triton.conv2d import FEW, Layer
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import widen
from nxcore_triton.strips import Image
from nxcore_triton.sum import plan_reduction

SPAN = 7
"""The most taps of a program, each of which has sums of its own."""

Run = Callable[[Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class Sums:
    """The pixels of a step and the filters of a program, and its warps."""

    pixels: int
    filters: int
    warps: int


@dataclass(frozen=True)
class Tiles:
    """The tile of the image's gradient, and the sums of the filters'; None: as the shapes say."""

    image: conv2d.Tile | None = None
    filters: Sums | None = None


@triton.jit
def dots(
    grad,
    x,
    shares,
    counts,
    share_step,
    total,
    stretch,
    size,
    out_size,
    grad_steps,
    steps,
    window,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAPS: tl.constexpr,
    FILTERS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write what a stretch of the pixels adds to TAPS taps of FILTERS filters."""
    stride, padding, dilation = window
    channels, made = counts
    lots = tl.cdiv(made, FILTERS)
    chunks: tl.constexpr = (COLUMNS + TAPS - 1) // TAPS
    unit = tl.program_id(0)
    first = unit % chunks * TAPS
    unit = unit // chunks
    a = unit % ROWS
    unit = unit // ROWS
    c = unit % channels
    unit = unit // channels
    filters = unit % lots * FILTERS + tl.arange(0, FILTERS)
    group = unit // lots
    known = filters < made
    channel = group.to(tl.int64) * made + filters
    grad += (channel * grad_steps[1])[:, None]
    x += (group.to(tl.int64) * channels + c) * steps[1]
    start = tl.program_id(1) * stretch
    if WIDE:
        start = tl.program_id(1).to(tl.int64) * stretch
    last = tl.minimum(start + stretch, total)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums += (tl.zeros([FILTERS, PIXELS], tl.float32),)
    for at in range(start, last, PIXELS):
        pixel = at + tl.arange(0, PIXELS)
        ok = pixel < last
        column = pixel % out_size[1]
        row = pixel // out_size[1] % out_size[0]
        image = (pixel // out_size[1] // out_size[0]).to(tl.int64)
        place = image * grad_steps[0] + row.to(tl.int64) * grad_steps[2] + column.to(tl.int64) * grad_steps[3]
        value = widen(tl.load(grad + place[None, :], known[:, None] & ok[None, :], other=0.0))
        i = row.to(tl.int64) * stride[0] - padding[0] + a * dilation[0]
        on_row = ok & (i >= 0) & (i < size[0])
        line = x + image * steps[0] + i * steps[2]
        left = column.to(tl.int64) * stride[1] - padding[1]
        fresh = ()
        for b in tl.static_range(TAPS):
            j = left + (first + b) * dilation[1]
            seen = widen(tl.load(line + j * steps[3], on_row & (j >= 0) & (j < size[1]), other=0.0))
            fresh += (sums[b] + value * seen[None, :],)
        sums = fresh
    to = shares + tl.program_id(1).to(tl.int64) * share_step
    to += ((channel * channels + c) * ROWS + a) * COLUMNS + first
    for b in tl.static_range(TAPS):
        tl.store(to + b, tl.sum(sums[b], 1), known & (first + b < COLUMNS))


def turned(problem: Problem) -> Iterator[Layer]:
    """Describe the convolutions that make the image's gradient."""
    grad, x, weight, *where, groups, _ = problem.args
    seen, whole = window_of(x, weight, *where), Image.of(problem.outputs[0])
    made, (image, channel, row, column) = weight.shape[0] // groups, weight.strides
    down, across = whole.strides[2:]
    for part in turned_windows(seen):
        out = whole._replace(strides=(*whole.strides[:2], seen.stride[0] * down, seen.stride[1] * across))
        of_filter = (channel, image, -part.step[0] * row, -part.step[1] * column)
        first_filter = part.tap[0] * row + part.tap[1] * column
        starts = (first_filter, made * image, part.first[0] * down + part.first[1] * across)
        yield Layer(Image.of(grad), out, part.window, groups, made, weight.shape[1], of_filter, starts)


def choose(made: int) -> Sums:
    """Return the sums for so many filters of a group."""
    if blocks.INTERPRETED:
        return Sums(1024, blocks.power_of_two(made), 4)
    return Sums(128, min(blocks.power_of_two(made), 8), 4)


def _bind_filters(problem: Problem, sums: Sums | None) -> Run:
    """Return the launches of the filters' gradient: ``run(grad, x, weight_grad)``."""
    grad, x, weight, *where, groups, _ = problem.args
    out, device, window = problem.outputs[1], problem.device, window_of(x, weight, *where)
    of_grad, of_x, made = Image.of(grad), Image.of(x), weight.shape[0] // groups
    chosen, taps = sums or choose(made), min(window.kernel[1], SPAN)
    units = groups * blocks.cdiv(made, chosen.filters) * weight.shape[1]
    units *= window.kernel[0] * blocks.cdiv(window.kernel[1], taps)
    total = of_grad.shape[0] * math.prod(window.outputs)
    steps = blocks.cdiv(total, chosen.pixels)
    most = blocks.MAX_PROGRAMS if blocks.INTERPRETED else 4 * blocks.FILL
    stretch = blocks.cdiv(steps, max(min(blocks.cdiv(most, units), steps), 1)) * chosen.pixels
    parts, each = blocks.cdiv(total, stretch), weight.numel()
    launch = Launch(
        dots,
        (units, parts),
        device,
        warps=chosen.warps,
        WIDE=total + stretch >= 2 * FEW,
        ROWS=window.kernel[0],
        COLUMNS=window.kernel[1],
        TAPS=taps,
        FILTERS=chosen.filters,
        PIXELS=chosen.pixels,
    )
    fixed = (
        (weight.shape[1], made),
        each,
        total,
        stretch,
        window.image,
        window.outputs,
        of_grad.strides,
        of_x.strides,
        (window.stride, window.padding, window.dilation),
    )
    shares = TensorMeta.row_major((parts, *weight.shape), torch.float32, device)
    conclude = plan_reduction(Reduction.of(shares, (0,), (0, *out.strides)), device)

    def run(grad: Tensor, x: Tensor, weight_grad: Tensor) -> None:
        found = shares.empty()
        launch((grad, x, found), grad, x, found, *fixed)
        conclude(found, weight_grad, 1.0)

    return run


def _bind_bias(problem: Problem) -> Callable[[Tensor, Tensor, float], None]:
    """Return the launches of the bias's gradient: ``run(grad, bias_grad, 1.0)``."""
    grad, lead = problem["grad"], problem["grad"].ndim - 3
    summed = (*range(lead), lead + 1, lead + 2)
    strides = tuple(int(d == lead) for d in range(grad.ndim))
    return plan_reduction(Reduction.of(grad, summed, strides), problem.device)


def plan(problem: Problem, tiles: Tiles | None = None) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem.

    It is called as ``call(grad, x, weight, stride, padding, dilation, groups, output_mask)``.
    """
    fresh, chosen = problem.outputs, tiles or Tiles()
    layers = () if fresh[0] is None else turned(problem)
    images = [conv2d.bind(layer, problem.device, chosen.image) for layer in layers]
    filters = None if fresh[1] is None else _bind_filters(problem, chosen.filters)
    bias = None if fresh[2] is None else _bind_bias(problem)

    def call(grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        made = tuple(None if out is None else out.empty() for out in fresh)
        for image in images:
            image(grad, weight, None, made[0])
        if filters is not None:
            filters(grad, x, made[1])
        if bias is not None:
            bias(grad, made[2], 1.0)
        return made

    return call


def sweep(problem: Problem) -> Iterator[Tiles]:
    """Yield the tiles worth timing, of one gradient at a time."""
    yield Tiles()
    if problem.outputs[0] is not None:
        yield from (Tiles(image=tile) for tile in conv2d.tiles(next(turned(problem))))
    if problem.outputs[1] is not None:
        first = choose(problem["weight"].shape[0] // problem["groups"])
        fewer = replace(first, filters=max(first.filters // 2, 1))
        for sums in (fewer, *(replace(first, pixels=n, warps=n // 32) for n in (64, 256))):
            yield Tiles(filters=sums)
