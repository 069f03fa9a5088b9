"""Gradients of filters and biases of direct convolutions: the units of a block and its shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from nxcore.plugin import Problem, Window, window_of
from nxcore_cuda.depthwise import FILL, Image, ceil_div
from nxcore_cuda.direct import FOUR, MOST, WARP

ONES = 16  # floats in front of the image's, which the bias's units see
SLIDING = 7  # the most taps of a unit
FEW = 4 * FILL  # blocks that leave shares, of each unit


@dataclass(frozen=True)
class Sums:
    """The work of a block.

    Attributes
    ----------
    filters : int
        Of a thread.
    rows : int
        Of a tile, which has 32 columns.
    threads : int
        Of a block.
    """

    filters: int
    rows: int
    threads: int = 256


@dataclass(frozen=True)
class Shape:
    """A call's shapes, and which of the two gradients are wanted."""

    grad: Image
    x: Image
    seen: Window
    groups: int
    channels: int
    made: int
    of_filters: bool
    of_bias: bool

    @classmethod
    def of(cls, problem: Problem) -> Shape:
        """Describe a call."""
        grad, x, weight, *where, groups, _ = problem.args
        _, of_filters, of_bias = problem.outputs
        made, channels = weight.shape[0] // groups, weight.shape[1] if of_filters else 0
        seen, wanted = window_of(x, weight, *where), (of_filters is not None, of_bias is not None)
        return cls(Image.of(grad), Image.of(x), seen, groups, channels, made, *wanted)

    @property
    def span(self) -> int:
        """Taps of a unit: a row's, where neighbouring taps and windows are neighbours; else 0, for one."""
        columns = self.seen.kernel[1]
        slides = self.seen.stride[1] == 1 and (self.seen.dilation[1] == 1 or columns == 1)
        return columns if slides and columns <= SLIDING else 0


@dataclass(frozen=True)
class Block:
    """How a launch is laid out; see ``conv2d_filters_args``."""

    deep: int
    pitch: int
    lots: int
    units: int
    of_filters: int
    lanes: int
    parts: int
    threads: int
    total: int

    @classmethod
    def of(cls, shape: Shape, sums: Sums) -> Block:
        """Lay out the launch of some sums."""
        seen, span = shape.seen, shape.span
        reach = [(k - 1) * d for k, d in zip(seen.kernel, seen.dilation, strict=True)]
        deep = (sums.rows - 1) * seen.stride[0] + reach[0] + 1
        # A unit reads whole quads: up to three columns past its last tap.
        pitch = ceil_div((WARP - 1) * seen.stride[1] + reach[1] + 1, FOUR)
        if span:
            pitch = WARP // FOUR - 1 + ceil_div(FOUR + span - 1, FOUR)
        pitch = FOUR * (pitch + (pitch % 2 == 0))  # rows begin in other banks
        lots = ceil_div(shape.made, sums.filters)
        of_filters = lots * shape.channels * (seen.kernel[0] if span else seen.taps)
        units = of_filters + lots * shape.of_bias
        lanes = ceil_div(units, ceil_div(units, sums.threads))
        threads = min(sums.threads, ceil_div(lanes * sums.rows * WARP // FOUR, WARP) * WARP)
        tiles = tiles_of(shape, sums)
        parts = min(tiles, max(FEW // (shape.groups * ceil_div(units, lanes)), 1))
        loaded = ONES + shape.channels * deep * pitch + lots * sums.filters * sums.rows * WARP
        return cls(
            deep,
            pitch,
            lots,
            units,
            of_filters,
            lanes,
            parts,
            threads,
            max(loaded, sums.filters * max(span, 1) * threads),
        )

    @property
    def bytes(self) -> int:
        """Bytes of shared memory of a launch."""
        return 4 * self.total


def grid_of(shape: Shape, sums: Sums) -> tuple[int, int]:
    """Return the tiles of an image down and across."""
    return ceil_div(shape.grad.height, sums.rows), ceil_div(shape.grad.width, WARP)


def tiles_of(shape: Shape, sums: Sums) -> int:
    """Return the tiles of a group."""
    down, across = grid_of(shape, sums)
    return shape.grad.images * down * across


def choose(shape: Shape) -> Sums:
    """Return the sums of a block: four rows where that leaves a large GPU enough blocks, else two."""
    filters = 2 * FOUR if shape.made > 2 * FOUR else FOUR
    four, two, one = (Sums(filters, rows) for rows in (4, 2, 1))
    if shape.groups * tiles_of(shape, four) >= FILL and Block.of(shape, four).bytes <= MOST:
        return four
    return two if Block.of(shape, two).bytes <= MOST else one


def candidates(shape: Shape) -> Iterator[Sums]:
    """Yield the sums worth timing."""
    chosen = choose(shape)
    found = [chosen]
    for filters, rows, threads in product((4, 8), (1, 2, 4, 8), (128, 256)):
        sums = replace(chosen, filters=filters, rows=rows, threads=threads)
        if filters < 2 * shape.made and Block.of(shape, sums).bytes <= MOST:
            found.append(sums)
    yield from dict.fromkeys(found)
