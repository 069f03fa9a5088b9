"""Strips over images: compile-time parameters and arguments of their kernels, from the tensors' layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nxcore.plugin import TensorMeta, Window
from nxcore_triton import tile as tiles
from nxcore_triton.schedule import Axis, Form

Sizes = tuple[int, ...]

MAX_TAPS = 128
"""A window of more is walked by loops that run, not by ones that are unrolled."""

UNROLLED = 800
"""Steps of a lane that take the compiler some seconds; twice as many where channels share them."""

NARROW = 2**30


class Tile(NamedTuple):
    """The work of one lane, and of a program.

    Attributes
    ----------
    rows, columns : int
        The targets of a lane; 0 rows for the kernel that takes any window, one target a lane.
    vector : int
        The channels of a lane where channels lie inside.
    """

    rows: int
    columns: int
    vector: int
    warps: int


ANY = Tile(0, 1, 1, 4)
"""One target a lane, and loops over the taps."""


class Image(NamedTuple):
    """A tensor as (N, C, H, W)."""

    shape: Sizes
    strides: Sizes
    itemsize: int

    @classmethod
    def of(cls, meta: TensorMeta) -> Image:
        """Describe a tensor of 3 or 4 dimensions; strides along sizes of 1 are 0."""
        shape = (1,) * (4 - meta.ndim) + meta.shape
        strides = (0,) * (4 - meta.ndim) + meta.strides
        return cls(
            shape, tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True)), meta.element_size()
        )

    @property
    def inside(self) -> bool:
        """Whether neighbours in memory are channels."""
        return self.shape[1] > 1 and self.strides[1] == 1 and self.strides[3] != 1

    def vector(self, most: int) -> int:
        """Return how many channels lie aligned in memory wherever a multiple of them begins."""
        if self.strides[1] != 1:
            return 1
        return math.gcd(self.shape[1], self.strides[0], *self.strides[2:], most)

    def unit(self, most: int) -> int:
        """Return how many columns do."""
        if self.strides[3] != 1:
            return 1
        return math.gcd(*self.strides[:3], self.shape[3], most)

    @property
    def span(self) -> int:
        """How far apart elements of one image may lie."""
        return sum(s * (n - 1) for n, s in zip(self.shape[1:], self.strides[1:], strict=True)) + 1


def axes(window: Window, *, back: bool) -> tuple[Axis, Axis]:
    """Return both axes of a window."""
    down, across = (
        (back, k, s, p, d)
        for k, s, p, d in zip(window.kernel, window.stride, window.padding, window.dilation, strict=True)
    )
    return down, across


@dataclass(frozen=True)
class Strips:
    """Strips on images.

    Attributes
    ----------
    form : Form
        What the kernel is compiled for.
    counts : (int, int, int, int)
        Groups of columns, strips, channels or vectors of them, and lanes in all.
    """

    form: Form
    counts: Sizes
    warps: int

    @property
    def programs(self) -> int:
        """How many programs there are."""
        return tiles.cdiv(self.counts[3], self.form.lanes)


def lay(
    window: Window, tile: Tile, targets: Sequence[Image], sources: Sequence[Image], *, back: bool = False
) -> Strips:
    """Lay strips on images of one shape.

    Parameters
    ----------
    tile : Tile
        Rounded to what the layouts and the stride allow.
    back : bool
        Targets are the inputs of the window.
    """
    first = targets[0]
    images, channels, height, width = first.shape
    down, across = axes(window, back=back)
    inside = first.inside
    pace = window.stride if back else (1, 1)
    rows = tiles.cdiv(min(tile.rows, height), pace[0]) * pace[0]
    columns = tiles.cdiv(min(tile.columns, width), pace[1]) * pace[1]
    vector, unit, whole = 1, 1, False
    if inside:
        vector = min(image.vector(tile.vector) for image in (*targets, *sources))
    else:
        whole = columns in (1, 2, 4, 8) and all(t.unit(columns) == columns for t in targets)
        step = columns // window.stride[1] if back else columns * window.stride[1]
        unit = min(s.unit(math.gcd(step, max(tiles.VECTOR // s.itemsize, 1), 8)) for s in sources)
    groups, strips = tiles.cdiv(width, columns), tiles.cdiv(height, rows)
    step = columns // window.stride[1] if back else columns * window.stride[1]
    total = images * groups * strips * (channels // vector)
    wide = total + 2**20 >= 2**31 or any(i.span >= NARROW for i in (*targets, *sources))
    form = Form(
        down,
        across,
        rows,
        columns,
        unit,
        vector,
        inside,
        whole,
        sources[0].shape[3] - (groups - 1) * step,
        lanes(total, tile.warps),
        1,
        wide,
    )
    return Strips(form, (groups, strips, channels // vector, total), tile.warps)


def lanes(total: int, warps: int) -> int:
    """Return the lanes of a program: one a thread."""
    return min(tiles.power_of_two(total), 4096) if tiles.INTERPRETED else warps * tiles.WARP


def columns(image: Image, most: int) -> int:
    """Return the columns of a lane's targets that make one vector, at most ``most``."""
    found = math.gcd(image.shape[3], most)
    return image.unit(found) if image.strides[3] == 1 else 1


def choose(window: Window, targets: Sequence[Image], sources: Sequence[Image], cost: int) -> Tile:
    """Return the tile of a kernel.

    Parameters
    ----------
    cost : int
        Unrolled steps for each target, such as the taps of a window.
    """
    first = targets[0]
    if window.taps > MAX_TAPS:
        return ANY
    widest = max(image.itemsize for image in (first, sources[0]))
    lane = max(tiles.VECTOR // widest, 1)
    if first.inside:
        rows, across, vector = 4, 4, min(image.vector(2) for image in (*targets, *sources))
    else:
        rows, across, vector = 8, columns(first, lane), 1
    most = UNROLLED * (2 if vector > 1 else 1)
    while rows > 1 and rows * across * vector * cost > most:
        rows //= 2
    while across > 1 and rows * across * vector * cost > most:
        across //= 2
    size = math.prod(first.shape)
    while rows > 2 and size < rows * across * vector * tiles.FILL * 8 * tiles.WARP:
        rows //= 2
    height = first.shape[2]
    return Tile(tiles.cdiv(height, tiles.cdiv(height, rows)), across, vector, 4)


def variations(chosen: Tile, cost: int) -> Iterator[Tile]:
    """Yield the tiles worth timing: the chosen one, and those around it that compile in reasonable time."""
    yield chosen
    rows, across, vector, warps = chosen
    if not rows:
        return
    for more in (warps // 2, 2 * warps):
        yield chosen._replace(warps=more)
    for r in sorted({rows // 2, rows, 2 * rows, 4} - {0}):
        for c in sorted({across // 2, across, 2 * across} - {0}):
            for v in sorted({vector // 2, vector, 2 * vector, 4 * vector} - {0}) if vector > 1 else (1,):
                fits = c <= 8 and v <= 8 and r * c * v * cost <= 2 * UNROLLED * (2 if v > 1 else 1)
                if fits and (r, c, v) != chosen[:3]:
                    yield Tile(r, c, v, warps)
