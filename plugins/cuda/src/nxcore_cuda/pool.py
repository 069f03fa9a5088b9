"""How threads share the windows of a pool: which kernel takes it, and how much of an image each has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from nxcore.plugin import TensorMeta, Window
from nxcore_cuda.layout import NARROW, VECTOR

SQUARES = frozenset({(2, 2, 0), (3, 1, 1), (3, 2, 0), (3, 2, 1), (5, 1, 2), (7, 1, 3)})
"""Kernel, stride and padding of the windows that kernels are specialised on."""

WARP = 32
LARGE = 5  # kernels that see more columns than a thread of channels had registers for
SIDE = 64  # of an image that vectors of any width divide
FILL = 132 * 1024
"""Threads that fill half of a large GPU: what fewer would do waits for memory more than it saves."""

SWEEP = 12  # tiles of a problem that are worth timing

Kind = Literal["strips", "rounds", "window"]


@dataclass(frozen=True)
class Tile:
    """The work of one thread.

    Attributes
    ----------
    kind : str
        The kernel: ``strips`` for windows of ``SQUARES``, ``rounds`` for the gradient of large ones, where
        a warp shares what is said here of a thread, ``window`` for any.
    rows, columns, channels : int
        Of the output, or of the input in a backward pass.
    vector : bool
        It loads its columns at once, from aligned rows.
    lanes : int
        Threads that share it, a power of two.
    threads : int
        Of a block.
    blocks : int
        Wanted on a multiprocessor, or 0. Where it wants one, the compiler takes registers to load ahead.
    """

    kind: Kind = "window"
    rows: int = 1
    columns: int = 1
    channels: int = 1
    vector: bool = False
    lanes: int = 1
    threads: int = 128
    blocks: int = 0

    @property
    def aligned(self) -> bool:
        """Whether some load or store is of several elements."""
        return self.vector or self.channels > 1


@dataclass(frozen=True)
class Image:
    """A tensor as images of channels of rows of columns; dimensions of size 1 have stride 0."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, meta: TensorMeta) -> Image:
        """Describe a tensor of three or four dimensions."""
        lead = (1,) * (4 - meta.ndim)
        strides = tuple(0 if n == 1 else s for n, s in zip(meta.shape, meta.strides, strict=True))
        return cls((*lead, *meta.shape), (*lead, *strides), meta.element_size())

    def in_vectors(self, axis: int, width: int) -> bool:
        """Return whether neighbours along an axis lie together, and every ``width``-th is aligned."""
        others = (s for k, s in enumerate(self.strides) if k != axis)
        return self.strides[axis] == 1 and all(s % width == 0 for s in others)


@dataclass(frozen=True)
class Pool:
    """A pool, forward or backward.

    Attributes
    ----------
    reads, writes : tuple of Image
        Those written share one shape and strides; threads share the work by it.
    channels_inside : bool
        What is written has its channels innermost in memory.
    forward : bool
        The outputs are written, else the input's gradient.
    """

    window: Window
    reads: tuple[Image, ...]
    writes: tuple[Image, ...]
    channels_inside: bool
    forward: bool

    @classmethod
    def of(
        cls,
        window: Window,
        reads: Sequence[TensorMeta],
        writes: Sequence[TensorMeta],
        *,
        forward: bool = True,
    ) -> Pool:
        """Describe a pool."""
        inside = not writes[0].is_contiguous()
        return cls(window, tuple(map(Image.of, reads)), tuple(map(Image.of, writes)), inside, forward)

    @property
    def square(self) -> tuple[int, int, int] | None:
        """Kernel, stride and padding where kernels are specialised on them."""
        w = self.window
        pairs = (w.kernel, w.stride, w.padding)
        if w.dilation != (1, 1) or any(a != b for a, b in pairs) or max(w.image) >= NARROW // max(w.image):
            return None
        found = (w.kernel[0], w.stride[0], w.padding[0])
        return found if found in SQUARES else None

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.reads[0].itemsize

    def pieces(self, tile: Tile) -> tuple[int, int, int]:
        """Return how many pieces of channels, rows and columns an image has."""
        _, channels, rows, columns = self.writes[0].shape
        return cdiv(channels, tile.channels), cdiv(rows, tile.rows), cdiv(columns, tile.columns)

    def threads(self, tile: Tile) -> int:
        """Return how many threads there are in all."""
        channels, rows, columns = self.pieces(tile)
        return self.writes[0].shape[0] * channels * rows * columns * tile.lanes

    def reach(self, columns: int) -> tuple[int, int, int]:
        """Return what a thread of so many columns reads of a row: its own, and what lies to either side."""
        kernel, stride, padding = self.window.kernel[1], self.window.stride[1], self.window.padding[1]
        if self.forward:
            return columns * stride, padding, max(kernel - padding - stride, 0)
        own = columns // stride
        return own, (kernel - 1 - padding) // stride, (columns - 1 + padding) // stride + 1 - own

    def takes(self, tile: Tile) -> bool:
        """Return whether vectors of a tile are whole and aligned where their tensors are."""
        images = (*self.reads, *self.writes)
        if tile.channels > 1:
            whole = self.writes[0].shape[1] % tile.channels == 0
            return whole and all(image.in_vectors(1, tile.channels) for image in images)
        if not tile.vector:
            return True
        stride, columns = self.window.stride[1], tile.columns
        if self.window.outputs[1] * stride != self.window.image[1] or self.writes[0].shape[3] % columns:
            return False
        if columns % (1 if self.forward else stride):
            return False
        own, *sides = self.reach(columns)
        return max(_power_above(side) for side in sides) <= own and all(
            image.in_vectors(3, min(width, VECTOR // image.itemsize))
            for group, width in ((self.reads, own), (self.writes, columns))
            for image in group
        )


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def _power_above(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def strips(pool: Pool, options: Sequence[int], most: int = 16, blocks: int = 1) -> Iterator[Tile]:
    """Yield tiles of the kernels for ``SQUARES``, the one that is likely to be fastest first.

    Parameters
    ----------
    options : sequence of int
        How many rows a thread may have.
    most : int
        Elements of a row that a thread may have; of ``LARGE`` kernels 8.
    blocks : int
        Of small windows one apart; 1 leaves the compiler registers to load ahead.
    """
    if pool.square is None:
        return
    kernel, stride, _ = pool.square
    room = min(most, 16 if kernel < LARGE else 8)
    step = 1 if pool.forward else stride
    blocks = blocks if kernel < LARGE and stride == 1 else 0
    found = []
    if not pool.channels_inside:
        wide = VECTOR // pool.itemsize // (stride if pool.forward else 1)
        wanted = (1 << k for k in range(min(wide, room).bit_length() - 1, 0, -1))
        found += [Tile("strips", columns=n, vector=True, blocks=blocks) for n in wanted]
    else:
        # Windows that overlap share what they see: the larger they are, the more columns pay.
        columns = step * (1 if kernel == stride or stride > 1 else 2 if kernel < LARGE else 4)
        vector = VECTOR // pool.itemsize
        wide = min(vector, room // columns) if kernel < LARGE else vector // 4
        wanted = (1 << k for k in range(wide.bit_length() - 1, 0, -1))
        found += [Tile("strips", columns=columns, channels=n, blocks=blocks) for n in wanted]
        found.append(Tile("strips", columns=columns))
    found.append(Tile("strips", columns=step))
    for tile in dict.fromkeys(filter(pool.takes, found)):
        yield with_rows(pool, tile, options)


def with_rows(pool: Pool, tile: Tile, options: Sequence[int]) -> Tile:
    """Return the tile with as many rows as pay: the fewest are read twice, and all threads have work."""
    overlap = (pool.window.kernel[0] - pool.window.stride[0]) / 2
    height = pool.writes[0].shape[2]
    found = [replace(tile, rows=n) for n in sorted(options)]
    full = [t for t in found if pool.threads(t) >= FILL] or found[:1]
    return min(full, key=lambda t: cdiv(height, t.rows) * (t.rows + overlap))


def window(pool: Pool) -> Tile:
    """Return the tile of the kernel for any window.

    Neighbouring threads share a window where their own ones would lie far apart in memory, or be too few.
    """
    w, lanes = pool.window, 1
    few = pool.threads(Tile()) * w.kernel[1] < FILL
    room = math.prod(pool.writes[0].shape[1:]) < NARROW // WARP
    if pool.forward and not pool.channels_inside and (w.stride[1] >= 4 or few) and room:
        lanes = min(_power_above(w.kernel[1]), WARP)
    return Tile("window", lanes=lanes, threads=256)


def variations(pool: Pool, first: Tile, found: Iterable[Tile]) -> Iterator[Tile]:
    """Yield the tiles worth timing: the first, those of its kernel of other sizes, and the rest."""
    seen = {first}
    yield first
    tried = [replace(first, threads=threads) for threads in (64, 128, 256)]
    if first.kind == "rounds":
        tried += [replace(first, rows=cdiv(first.rows, n), threads=128) for n in (2, 4)]
    elif first.kind == "strips":
        sizes = (2, 4, 8, 14) if pool.window.stride == (1, 1) else (2, 4, 8)
        tried = [replace(first, rows=rows) for rows in sizes]
        narrow = replace(first, channels=first.channels // 2)
        if pool.window.kernel[0] < LARGE or not pool.channels_inside:
            tried.append(replace(first, blocks=1 - first.blocks))
            if first.channels > 1:
                wide = 2 * first.columns
                tried += [replace(narrow, columns=wide), replace(first, columns=wide)]
        tried += [replace(first, threads=256)]
        if first.columns > 2 and first.vector:
            tried += [replace(first, columns=first.columns // 2, rows=rows) for rows in sizes[1:3]]
        tried += [narrow] if first.channels > 1 else []
    for tile in (*tried, *found):
        if tile not in seen and pool.takes(tile) and len(seen) < SWEEP:
            seen.add(tile)
            yield tile


def usual(dtype: torch.dtype, taps: bool = False, *, forward: bool = True) -> Iterator[Pool]:
    """Yield pools whose tiles, together, are those that ordinary calls want.

    Parameters
    ----------
    taps : bool
        The number of each window's largest tap is read too.
    """
    device, kinds = torch.device("cpu"), (dtype, torch.uint8)[: 1 + taps]
    for square in ((3, 1, 1), (3, 2, 1), (2, 2, 0)):
        for inside in (False, True):
            window = Window.of_pool((SIDE, SIDE), *square)
            sizes = (window.image, window.outputs) if forward else (window.outputs, window.image)
            read, written = ((SIDE, SIDE, *size) for size in sizes)
            reads = [TensorMeta(read, _dense(read, inside), kind, device) for kind in kinds]
            writes = [TensorMeta(written, _dense(written, inside), dtype, device)]
            yield Pool.of(window, reads, writes, forward=forward)


def _dense(shape: tuple[int, ...], channels_inside: bool) -> tuple[int, ...]:
    _, channels, rows, columns = shape
    if channels_inside:
        return rows * columns * channels, 1, columns * channels, channels
    return channels * rows * columns, rows * columns, columns, 1
