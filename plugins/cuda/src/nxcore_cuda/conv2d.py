"""conv2d: a block has a tile of one image in shared memory; a thread, some pixels of some filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Window, window_of
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.depthwise import FILL, STEPS, Image, ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch

WARP = 32
FOUR = 4  # filters that are read at once
MOST = 62 * 1024
"""Bytes of shared memory that a block has on every device."""


@dataclass(frozen=True)
class Tile:
    """The work of a thread, and how a block is made of warps.

    Attributes
    ----------
    pixels : int
        Neighbouring outputs of a thread, and rows of a warp, which has 32 columns.
    filters : int
        Of a thread.
    slices : int
        Warps that share the channels.
    rows : int
        Warps that have rows of their own.
    """

    pixels: int
    filters: int
    slices: int
    rows: int = 1


@dataclass(frozen=True)
class Layer:
    """A call's shapes: images, window, groups, and the channels of a group in and out."""

    x: Image
    out: Image
    seen: Window
    groups: int
    channels: int
    made: int

    @classmethod
    def of(cls, problem: Problem) -> Layer:
        """Describe a call."""
        x, weight, _, *where, groups = problem.args
        seen, out = window_of(x, weight, *where), Image.of(problem.outputs)
        return cls(Image.of(x), out, seen, groups, weight.shape[1], out.channels // groups)

    @property
    def slides(self) -> bool:
        """Whether neighbouring taps and windows are neighbours in a row, so that a thread reads them once."""
        return self.seen.stride[1] == 1 and (self.seen.dilation[1] == 1 or self.seen.kernel[1] == 1)

    @property
    def lines(self) -> int:
        """The runs of 32 columns of all images' outputs, of each group."""
        return self.out.images * self.groups * self.out.height * ceil_div(self.out.width, WARP)


@dataclass(frozen=True)
class Floats:
    """How a block's shared memory is laid out, in floats; see ``conv2d_args``."""

    tall: int
    deep: int
    pitch: int
    lots: int
    filter_pitch: int
    total: int

    @classmethod
    def of(cls, layer: Layer, tile: Tile) -> Floats:
        """Lay out the shared memory of a tile."""
        seen, tall = layer.seen, tile.pixels * tile.rows
        reach = [(k - 1) * d for k, d in zip(seen.kernel, seen.dilation, strict=True)]
        deep = (tall - 1) * seen.stride[0] + reach[0] + 1
        # A thread reads whole vectors: up to `pixels` past its last tap.
        pitch = (WARP - 1) * seen.stride[1] + reach[1] + tile.pixels
        pitch = ceil_div(pitch, FOUR) * FOUR
        lots = ceil_div(layer.made, tile.filters)
        filter_pitch = lots * tile.filters
        filter_pitch += FOUR * (filter_pitch % (2 * FOUR) == 0)  # terms begin in other banks
        loaded = layer.channels * (deep * pitch + seen.taps * filter_pitch)
        shared = tile.filters * tile.slices * tile.pixels * WARP * lots * tile.rows * (tile.slices > 1)
        return cls(tall, deep, pitch, lots, filter_pitch, max(loaded, shared))

    @property
    def bytes(self) -> int:
        """Bytes of shared memory of a launch."""
        return 4 * self.total


def choose(layer: Layer) -> Tile:
    """Return the tile for a layer: as many outputs a thread as leave enough warps for a large GPU."""
    slices = 4 if layer.channels >= FOUR else 2 if layer.channels > 1 else 1
    filters = 2 * FOUR if layer.made > FOUR else FOUR
    lots = ceil_div(layer.made, filters)
    pixels = 1
    while layer.slides and pixels < FOUR and layer.lines * lots * slices // (2 * pixels) >= 4 * FILL:
        pixels *= 2
    if pixels == 1 and filters > FOUR and layer.lines * lots * slices < 8 * FILL:
        filters = FOUR
    return Tile(pixels, filters, slices)


def candidates(layer: Layer) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    chosen = choose(layer)
    found = [chosen]
    for pixels, filters, slices, rows in product((1, 2, 4), (4, 8), (1, 2, 4), (1, 2, 4)):
        tile = Tile(pixels, filters, slices, rows)
        fits = (layer.slides or pixels == 1) and slices <= layer.channels and filters < 2 * layer.made
        floats = Floats.of(layer, tile)
        if fits and floats.bytes <= MOST and WARP * slices * rows * floats.lots <= 512:
            found.append(tile)
    yield from dict.fromkeys(found)


def instance(dtype: torch.dtype, layer: Layer, tile: Tile) -> Instance:
    """Return the kernel of a tile."""
    kernel = layer.seen.kernel if layer.slides else (0, 0)
    threads = WARP * tile.slices * tile.rows * ceil_div(layer.made, tile.filters)
    arguments = (TYPES[dtype], *kernel, tile.pixels, tile.filters, tile.slices)
    return Instance("conv2d", arguments, threads=max(128, 1 << (threads - 1).bit_length()))


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x, weight, bias, stride, padding, dilation, groups)``.
    """
    fresh, layer = problem.outputs, Layer.of(problem)
    weight, bias, seen, out = problem["weight"], problem["bias"], layer.seen, layer.out
    chosen = tile or choose(layer)
    floats = Floats.of(layer, chosen)
    down, across = ceil_div(out.height, floats.tall), ceil_div(out.width, WARP)
    whole = out.steps[3] == 1 and out.divides(chosen.pixels)
    launch = Launch(
        instance(problem.dtype, layer, chosen),
        problem.device,
        out.images * layer.groups * down * across,
        WARP * chosen.slices * chosen.rows * floats.lots,
        shared=floats.bytes,
        pointers=4,
        layout=f"{3 * STEPS}q23i",
        values=(
            *(*layer.x.steps, *weight.strides, *out.steps, 0 if bias is None else bias.strides[0]),
            *(layer.groups, layer.channels, layer.made, *seen.kernel),
            *(*seen.image, *seen.outputs, *seen.stride, *seen.padding, *seen.dilation),
            *(down, across, floats.tall, floats.deep, floats.pitch, floats.lots, floats.filter_pitch),
            int(whole),
        ),
    )

    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any) -> Tensor:
        made = fresh.empty()
        launch(x, weight, bias, made)
        return made

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from candidates(Layer.of(problem))


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time: squares of 3, 5 and 7, four to eight."""
    for dtype, size, side in product(FLOATS, (3, 5, 7), (32, 64, 128)):
        image = Image(2, 4, side, side, (4 * side * side, side * side, side, 1))
        made = replace(image, channels=8)
        seen = Window.of_convolution((2, 4, side, side), (size, size), 1, size // 2)
        layer = Layer(image, made, seen, 1, 4, 8)
        yield instance(dtype, layer, choose(layer))
