"""Direct convolutions of few channels: a call's shapes, the tiles of a block and its shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from nxcore.plugin import Problem, Window, turned_windows, window_of
from nxcore_cuda.depthwise import FILL, Image, ceil_div

WARP = 32
FOUR = 4  # filters that are read at once
MOST, THREADS = 62 * 1024, 512
"""Bytes of shared memory that a block has on every device, and threads of a tile."""


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
class Filters:
    """Where filters lie, in elements.

    Attributes
    ----------
    start : int
        The first filter's first tap.
    group : int
        From one group's filters to the next one's.
    steps : (int, int, int, int)
        From filter to filter, channel to channel, row to row and column to column.
    """

    start: int
    group: int
    steps: tuple[int, int, int, int]


@dataclass(frozen=True)
class Layer:
    """A direct convolution's shapes: images, window, groups, and the channels of a group in and out.

    ``out_start`` is how many elements lie before the first output.
    """

    x: Image
    out: Image
    seen: Window
    groups: int
    channels: int
    made: int
    filters: Filters = Filters(0, 0, (0, 0, 0, 0))
    out_start: int = 0

    @classmethod
    def of(cls, problem: Problem) -> Layer:
        """Describe a call."""
        x, weight, _, *where, groups = problem.args
        seen, out = window_of(x, weight, *where), Image.of(problem.outputs)
        made = out.channels // groups
        filters = Filters(0, made * weight.strides[0], weight.strides)
        return cls(Image.of(x), out, seen, groups, weight.shape[1], made, filters)

    @classmethod
    def turned(cls, problem: Problem) -> Iterator[Layer]:
        """Describe the convolutions that make the image's gradient."""
        grad, x, weight, *where, groups, _ = problem.args
        seen, (out, *_) = window_of(x, weight, *where), problem.outputs
        whole, made = Image.of(out), weight.shape[0] // groups
        image, channel, row, column = weight.strides
        for part in turned_windows(seen):
            start = part.tap[0] * row + part.tap[1] * column
            steps = (channel, image, -part.step[0] * row, -part.step[1] * column)
            height, width = part.window.outputs
            apart = (*whole.steps[:2], seen.stride[0] * whole.steps[2], seen.stride[1] * whole.steps[3])
            yield cls(
                Image.of(grad),
                Image(whole.images, whole.channels, height, width, apart),
                part.window,
                groups,
                made,
                weight.shape[1],
                Filters(start, made * image, steps),
                part.first[0] * whole.steps[2] + part.first[1] * whole.steps[3],
            )

    @property
    def slides(self) -> bool:
        """Whether neighbouring taps and windows are neighbours in a row, so that a thread reads them once."""
        columns = self.seen.kernel[1]
        return self.seen.stride[1] == 1 and columns > 0 and (self.seen.dilation[1] == 1 or columns == 1)

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
        reach = [max(k - 1, 0) * d for k, d in zip(seen.kernel, seen.dilation, strict=True)]
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
    filters = 2 * FOUR if layer.made > 2 * FOUR else FOUR
    warps = layer.lines * ceil_div(layer.made, filters) * slices
    if filters > FOUR and warps < 8 * FILL:
        filters = FOUR
    pixels = 1
    while layer.slides and pixels < FOUR and warps // (2 * pixels) >= 8 * FILL:
        pixels *= 2
    # Two warps of rows share what their windows have in common.
    found = [Tile(pixels, filters, slices, rows) for rows in (2, 1)]
    return next((tile for tile in found if fits(layer, tile)), found[-1])


def fits(layer: Layer, tile: Tile) -> bool:
    """Return whether a block of a tile has memory and threads."""
    floats = Floats.of(layer, tile)
    return floats.bytes <= MOST and WARP * tile.slices * tile.rows * floats.lots <= THREADS


def candidates(layer: Layer) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    chosen = choose(layer)
    found = [chosen]
    for pixels, filters, slices, rows in product((1, 2, 4), (4, 8), (1, 2, 4), (1, 2, 4)):
        tile = Tile(pixels, filters, slices, rows)
        useful = (layer.slides or pixels == 1) and slices <= layer.channels and filters < 2 * layer.made
        if useful and fits(layer, tile):
            found.append(tile)
    yield from dict.fromkeys(found)
