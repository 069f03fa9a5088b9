"""Channels of images as the kernels of batch_norm walk through them, and how their blocks share each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nxcore.plugin import FLOATS, Problem, TensorMeta, collapse
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, divides, in_vectors, single, steps, widths
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch

WARP = 32
UNROLL = 2  # vectors in flight of one thread, at most: four were slower
FINISHED = 4  # the same of one that first reads what many blocks of another kernel left: fewer blocks do
CACHED, ONCE, LAST = range(3)  # loads, as in channel.cuh
LOADS = (CACHED, CACHED)  # of the first kernel of a pair, and of the second or only one

FILL = 264
"""Blocks that fill a large GPU: two for each of 132 multiprocessors.

A constant, not the device's own count, so that a sum has the same bits on every device.
"""

MOST = 128
"""Blocks that share a channel: every warp of the second kernel reads what all of them left."""

HELD = 16
"""Elements of a channel that one thread holds, at most."""

NEAR = 2**30
"""Places below it, with what a step adds to them, are numbered in 32 bits with a sign."""

CHANNELS = f"3qif{DIMS}2i"
"""Struct channels."""


@dataclass(frozen=True)
class Tile:
    """How blocks share a channel.

    Attributes
    ----------
    span : int
        Vectors of a block.
    threads : int
        Of a block.
    whole : bool
        Whether one kernel has a block for each channel, with all of it in registers.
    """

    span: int
    threads: int = 256
    whole: bool = False


@dataclass(frozen=True)
class Channels:
    """Operands of one shape as the kernels see them: a channel's elements, and from one to the next.

    Attributes
    ----------
    sizes : tuple of int
        Of a channel, outermost first.
    strides : tuple of tuple of int
        In these dimensions, one an operand.
    between : tuple of int
        From one channel to the next, one an operand.
    width : int
        Elements of a vector.
    """

    channels: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    between: tuple[int, ...]
    width: int = 1

    @classmethod
    def of(cls, *operands: TensorMeta) -> Channels:
        """Describe operands of one shape, (N, C, ...), in the order of the first one's memory."""
        first = operands[0]

        def rest(values: Sequence[int]) -> tuple[int, ...]:
            return (values[0], *values[2:])

        sizes, strides = collapse(rest(first.shape), *(rest(m.strides) for m in operands))
        found = cls(first.shape[1], sizes, strides, tuple(m.strides[1] for m in operands))
        fitting = (w for w in widths(first.element_size()) if divides(w, sizes, strides))
        width = next((w for w in fitting if all(step % w == 0 for step in found.between)), 1)
        return cls(found.channels, sizes, strides, found.between, width)

    @property
    def count(self) -> int:
        """How many values a channel has."""
        return math.prod(self.sizes)

    def choose(self, most: int = UNROLL) -> Tile:
        """Return the tile: enough blocks to fill the device, of so many vectors a thread at most."""
        terms = self.count // self.width
        threads = min(max(1 << (terms - 1).bit_length(), WARP), 256)
        span = min(-(-terms // -(-FILL // self.channels)), most * threads)
        return Tile(_whole(max(span, -(-terms // MOST)), threads), threads)

    def tiles(self) -> Iterator[Tile]:
        """Yield the tiles worth timing."""
        terms, first = self.count // self.width, self.choose()
        found = [first]
        for threads in (128, 256, 512):
            spans = (_whole(max(threads * k, -(-terms // MOST)), threads) for k in (1, 2, 4, 8, 16))
            found += [Tile(span, threads) for span in spans]
        yield from dict.fromkeys(found)

    def whole(self) -> Iterator[Tile]:
        """Yield the tiles of a block a channel, the one with the fewest vectors a thread first."""
        terms = self.count // self.width
        if self.near(self.width) and self.near(1):
            for threads in (1024, 512, 256, 128, 64, WARP):
                fills = threads // 2 < terms or threads == WARP
                if fills and self.width * -(-terms // threads) <= HELD:
                    yield Tile(_whole(terms, threads), threads, whole=True)

    def splits(self, tile: Tile) -> int:
        """Return how many blocks share a channel."""
        return -(-self.count // (tile.span * self.width))

    def near(self, width: int) -> bool:
        """Return whether places in a channel are found by 32 bits and one division, in such vectors."""
        sizes, strides = in_vectors(width, self.sizes, self.strides)
        if len(sizes) > 2 or math.prod(sizes) >= NEAR:
            return False
        return all(sum((n - 1) * step for n, step in zip(sizes, s, strict=True)) < NEAR for s in strides)

    def values(self, width: int, tile: Tile, eps: float, shares: int = 0) -> tuple[Any, ...]:
        """Return the values of a struct channels in vectors of ``width``, then those of the strides.

        ``shares``: of a channel, if others than the blocks of a pair left them.
        """
        counted, scaled = in_vectors(width, self.sizes, self.strides)
        span = tile.span * self.width // width
        head = (
            self.count,
            self.count // width,
            span,
            shares or self.splits(tile),
            single(eps),
            *dims(counted),
            int(self.near(width)),
            0,
        )
        return (*head, *(step for s in scaled for step in steps(s)))


def _whole(span: int, threads: int) -> int:
    return -(-span // threads) * threads


def instance(entry: str, source: str, dtype: torch.dtype, width: int, tile: Tile) -> Instance:
    """Return one of the two kernels of a source, for a tile in vectors of ``width``."""
    loads = LOADS[not entry.endswith(("_moments", "_sums"))]
    if tile.whole:
        vectors = -(-tile.span // tile.threads)
        unroll = 1 << (vectors - 1).bit_length()
        return Instance(entry, (TYPES[dtype], width, unroll, loads), source, f"{source}_args", threads=1024)
    most = max(tile.threads, 256)
    # A thread computes with all that it may have in flight: it has no more of that than vectors.
    own = FINISHED if entry.endswith("_finish") else UNROLL
    unroll = next((u for u in (1, 2) if tile.span <= u * tile.threads), own)
    return Instance(
        entry,
        (TYPES[dtype], width, unroll, loads),
        source,
        f"{source}_args",
        threads=most,
        blocks=512 // most,
    )


def usual(source: str, entries: Sequence[str]) -> Iterator[Instance]:
    """Yield what ordinary calls want of a source's kernels."""
    for dtype in FLOATS:
        for width in (1, VECTOR // dtype.itemsize):
            for span in (256, 512, 1024) if width > 1 else (1024,):
                for entry in entries:
                    yield instance(entry, source, dtype, width, Tile(span))


def usual_whole(source: str, entry: str) -> Iterator[Instance]:
    """Yield what ordinary calls want of a kernel of a block a channel."""
    for dtype in FLOATS:
        width = VECTOR // dtype.itemsize
        for vectors in (v for v in (1, 2, 4) if v * width <= HELD):
            for span, each in ((vectors, width), (vectors * width, 1)):
                yield instance(entry, source, dtype, each, Tile(span * 1024, 1024, whole=True))


def pair(
    problem: Problem,
    found: Channels,
    tile: Tile,
    *,
    source: str,
    entries: Sequence[str],
    blocks: Sequence[int],
    pointers: int,
    kind: int,
    shares: int = 0,
) -> tuple[Any, ...]:
    """Return the launches of both kernels, or of one, each for aligned data and for any.

    They share what blocks leave, so a block has the same elements in all of them.
    """

    def launch(entry: str, split: int, width: int) -> Any:
        return Launch(
            instance(
                entry, source, problem.dtype, width, replace(tile, span=tile.span * found.width // width)
            ),
            problem.device,
            (split, found.channels),
            tile.threads,
            pointers=pointers,
            layout=f"{len(found.between)}qi{CHANNELS}{len(found.between) * STRIDES}",
            values=(*found.between, kind, *found.values(width, tile, problem["eps"], shares)),
        )

    def guarded(entry: str, split: int) -> Any:
        vector = launch(entry, split, found.width) if found.width > 1 else None
        return Guarded(vector, launch(entry, split, 1))

    return tuple(map(guarded, entries, blocks))
