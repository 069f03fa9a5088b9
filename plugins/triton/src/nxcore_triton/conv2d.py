"""conv2d: a program makes some filters of a group at some pixels of one image, term by term."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Window, window_of
from nxcore_triton import tile as blocks
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.strips import Image

FEW = 2**30
"""Elements that a channel spans, below which places in it are counted in 32 bits."""


@dataclass(frozen=True)
class Tile:
    """The pixels and filters of a program, and its warps."""

    pixels: int
    filters: int
    warps: int


@triton.jit
def convolve(
    x,
    weight,
    bias,
    out,
    counts,
    size,
    out_size,
    steps,
    of_filter,
    of_bias,
    out_steps,
    starts,
    window,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FILTERS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write FILTERS channels of PIXELS outputs."""
    stride, padding, dilation = window
    lots = tl.cdiv(counts[2], FILTERS)
    tiles = tl.cdiv(out_size[0] * out_size[1], PIXELS)
    program = tl.program_id(0)
    at = program % tiles * PIXELS + tl.arange(0, PIXELS)
    row, column = at // out_size[1], at % out_size[1]
    lot = program // tiles % lots
    group, image = program // tiles // lots % counts[0], (program // tiles // lots // counts[0]).to(tl.int64)
    made = lot * FILTERS + tl.arange(0, FILTERS)
    known, ok = made < counts[2], row < out_size[0]
    channel = group.to(tl.int64) * counts[2] + made
    x += image * steps[0] + group.to(tl.int64) * counts[1] * steps[1]
    weight += starts[0] + group.to(tl.int64) * starts[1] + made.to(tl.int64) * of_filter[0]
    top, left = row * stride[0] - padding[0], column * stride[1] - padding[1]
    if WIDE:
        top, left = top.to(tl.int64), left.to(tl.int64)
    total = tl.zeros([FILTERS, PIXELS], tl.float32)
    for _ in range(counts[1]):
        for a in range(ROWS):
            i = top + a * dilation[0]
            on_row = ok & (i >= 0) & (i < size[0])
            for b in tl.static_range(COLUMNS):
                j = left + b * dilation[1]
                on = on_row & (j >= 0) & (j < size[1])
                value = widen(tl.load(x + i * steps[2] + j * steps[3], on, other=0.0))
                factor = widen(tl.load(weight + a * of_filter[2] + b * of_filter[3], known, other=0.0))
                total += factor[:, None] * value[None, :]
        x += steps[1]
        weight += of_filter[1]
    if BIAS:
        total += widen(tl.load(bias + channel * of_bias, known, other=0.0))[:, None]
    to = out + starts[2] + image * out_steps[0] + (channel * out_steps[1])[:, None]
    to += (row.to(tl.int64) * out_steps[2] + column.to(tl.int64) * out_steps[3])[None, :]
    tl.store(to, narrow(total, out.dtype.element_ty), known[:, None] & ok[None, :])


def choose(images: int, pixels: int, made: int) -> Tile:
    """Return the tile for so many images of groups: fewer outputs a program where few programs are left."""
    if blocks.INTERPRETED:
        return Tile(1024, blocks.power_of_two(made), 4)
    filters = min(blocks.power_of_two(made), 8)
    lots = blocks.cdiv(made, filters)
    found = next((n for n in (256, 128, 64) if images * lots * blocks.cdiv(pixels, n) >= 2 * blocks.FILL), 32)
    return Tile(found, filters, max(found // 64, 1))


@dataclass(frozen=True)
class Layer:
    """A direct convolution's shapes: images, window, groups, and the channels of a group in and out.

    Attributes
    ----------
    of_filter : tuple of int
        Elements from filter to filter, channel to channel, row to row and column to column.
    starts : (int, int, int)
        Where the first filter lies, from one group's filters to the next one's, where the first output lies.
    """

    x: Image
    out: Image
    window: Window
    groups: int
    channels: int
    made: int
    of_filter: tuple[int, ...]
    starts: tuple[int, int, int]


def forward(problem: Problem) -> Layer:
    """Describe a call."""
    x, weight, _, *where, groups = problem.args
    made = weight.shape[0] // groups
    starts = (0, made * weight.strides[0], 0)
    images, window = (Image.of(x), Image.of(problem.outputs)), window_of(x, weight, *where)
    return Layer(*images, window, groups, weight.shape[1], made, weight.strides, starts)


def tile_of(layer: Layer) -> Tile:
    """Return the tile for a layer."""
    height, width = layer.window.outputs
    return choose(layer.x.shape[0] * layer.groups, height * width, layer.made)


def bind(
    layer: Layer, device: torch.device, tile: Tile | None, of_bias: int | None = None
) -> Callable[..., None]:
    """Return the launch of a direct convolution: ``launch(x, weight, bias, out)``."""
    image, window, chosen = layer.x, layer.window, tile or tile_of(layer)
    pixels = window.outputs[0] * window.outputs[1]
    spans = ((n - 1) * abs(s) for n, s in zip(image.shape[2:], image.strides[2:], strict=True))
    lots = blocks.cdiv(layer.made, chosen.filters)
    launch = Launch(
        convolve,
        (image.shape[0] * layer.groups * blocks.cdiv(pixels, chosen.pixels) * lots,),
        device,
        warps=chosen.warps,
        BIAS=of_bias is not None,
        WIDE=sum(spans) >= FEW,
        ROWS=window.kernel[0],
        COLUMNS=window.kernel[1],
        FILTERS=chosen.filters,
        PIXELS=chosen.pixels,
    )
    fixed = (
        (layer.groups, layer.channels, layer.made),
        window.image,
        window.outputs,
        image.strides,
        layer.of_filter,
        of_bias or 0,
        layer.out.strides,
        layer.starts,
        (window.stride, window.padding, window.dilation),
    )

    def run(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        tensors = (x, weight, weight if bias is None else bias, out)
        launch(tensors, *tensors, *fixed)

    return run


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(x, weight, bias, stride, padding, dilation, groups)``."""
    fresh, bias = problem.outputs, problem["bias"]
    run = bind(forward(problem), problem.device, tile, None if bias is None else bias.strides[0])

    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any) -> Tensor:
        result = fresh.empty()
        run(x, weight, bias, result)
        return result

    return call


def tiles(layer: Layer) -> Iterator[Tile]:
    """Yield a layer's tiles worth timing."""
    first = tile_of(layer)
    yield from dict.fromkeys(
        (
            first,
            *(replace(first, pixels=n, warps=max(n // 64, 1)) for n in (32, 64, 128, 256)),
            *(replace(first, warps=w) for w in (1, 2, 4)),
            replace(first, filters=max(first.filters // 2, 1)),
        )
    )


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from tiles(forward(problem))
