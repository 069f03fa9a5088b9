"""Tiles of strict products: how blocks, slices and threads share one, and which tile a product has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from nxcore.plugin import Product
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.matmul_way import FOUR, Way

SHARED = 232448  # bytes of shared memory that a block may have on an H100 and an H200
FILL = 132
"""Blocks that fill a large GPU, one for each of 132 multiprocessors.

A constant, not the device's own count, so that a product has the same bits on every device.
"""


@dataclass(frozen=True)
class Tile:
    """How a block and its threads share a product.

    Attributes
    ----------
    tall, wide : int
        Rows and columns of a block.
    rows, columns : int
        Of a thread.
    depth : int
        Terms of one stage of shared memory.
    slices : int
        Parts of a block that share the terms of a stage.
    parts : int
        Blocks that share a tile, at most.
    resident : int
        Blocks that a multiprocessor is to hold, for the compiler.
    by_line : bool
        Whether ``a``'s terms stay neighbours in shared memory where they are in memory.
    straight : bool
        Whether numbers that fill no vector of shared memory go there one by one, past the registers.
    order : int
        Of a term's multiply-adds: 0 row after row, 1 rows back and forth, 2 columns back and forth.
    stages : int
        Of shared memory: one is read, the others are on their way. More than two need ``straight``.
    """

    tall: int
    wide: int
    rows: int
    columns: int
    depth: int
    slices: int = 1
    parts: int = 1
    resident: int = 1
    by_line: bool = True
    straight: bool = False
    order: int = 0
    stages: int = 2

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tall * self.wide // (self.rows * self.columns) * self.slices

    @property
    def shared(self) -> int:
        """Bytes of shared memory: all stages, or what slices leave for the first of them."""
        stages = self.stages * self.depth * (self.tall + self.wide + 2 * FOUR)
        return 4 * max(stages, (self.slices - 1) * self.tall * self.wide)

    def instance(self, a: Way, b: Way) -> Instance:
        """Return its kernel."""
        sizes = (self.tall, self.wide, self.rows, self.columns, self.depth, self.slices)
        by_line = self.by_line and a.inner and a.vectors
        rest: tuple[int | bool, ...] = (self.straight, self.order) if self.straight or self.order else ()
        rest += (self.stages,) if self.stages > 2 else ()
        arguments = (*sizes, by_line, a.inner, a.vectors, b.inner, b.vectors, *rest)
        return Instance("matmul", arguments, threads=self.threads, blocks=self.resident)


@dataclass(frozen=True)
class Slices(Tile):
    """How a block and its threads share a product, where no team of slices waits for another in the loop.

    Attributes
    ----------
    team : int
        Slices that share stages of shared memory.
    turn : int
        Stages that are read in one turn of the loop.
    pieces : int
        Of what a thread sends to a stage: one each term, between reads of shared memory.
    held : bool
        Whether vectors whose terms are neighbours in memory come through registers, loaded a stage ahead,
        else they are sent one number after another.
    whole : bool
        Whether no row, column or term of a tile lies outside of the product.
    one : bool
        Whether the product is no batch.
    """

    by_line: bool = False
    order: int = 1
    stages: int = 4
    team: int = 1
    turn: int = 1
    pieces: int = 1
    held: bool = False
    whole: bool = False
    one: bool = False

    @property
    def run(self) -> int:
        """Terms of a slice in one stage of its team."""
        return self.depth // self.slices // self.turn

    @property
    def shared(self) -> int:
        """Bytes of shared memory: of each slice all stages, or its sums."""
        stages = self.stages * self.run * (self.tall + self.wide + 2 * FOUR)
        return 4 * self.slices * max(stages, self.tall * self.wide)

    def for_product(self, product: Product) -> Self:
        """Return the tile as a product needs it: with bounds or whole, for a batch or for one."""
        p = product
        whole = not (p.rows % self.tall or p.columns % self.wide or p.terms % self.depth)
        return replace(self, whole=whole, one=math.prod(p.batch) == 1)

    @property
    def kind(self) -> Self:
        """The tile as in ``TEAMS``, whatever the product."""
        return replace(self, parts=1, whole=False, one=False)

    @property
    def alone(self) -> bool:
        """Whether no bound is checked, and each block has all terms of a tile of one product."""
        return self.one and self.whole and self.parts == 1

    def instance(self, a: Way, b: Way) -> Instance:
        """Return its kernel."""
        sizes = (self.tall, self.wide, self.rows, self.columns, self.run, self.slices)
        shared = (self.team, self.stages, self.turn, self.pieces, self.held)
        arguments = (*sizes, *shared, a.inner, a.vectors, b.inner, b.vectors, self.whole)
        return Instance("matmul_slices", arguments, threads=self.threads, blocks=self.resident)


LARGE = Tile(128, 128, 8, 8, 16, resident=2, by_line=False)
MIDDLE = Tile(64, 128, 8, 8, 16, resident=2)
SMALL = Tile(64, 64, 8, 8, 32, slices=2, resident=2)
LEAST = Tile(64, 32, 8, 8, 32, slices=4, resident=2)
STRAIGHT = Tile(64, 128, 8, 8, 16, resident=3, by_line=False, straight=True, order=2)
SLICED = Tile(64, 128, 8, 8, 32, slices=2, by_line=False, straight=True, order=2)
PAIR = Tile(128, 128, 8, 16, 32, resident=2, by_line=False, straight=True, order=2)
DEEP = replace(LEAST, straight=True, stages=4)
AHEAD = replace(STRAIGHT, stages=4)
OCTET = Slices(64, 32, 8, 8, 128, 8, team=8, turn=2, pieces=7)
BROAD = replace(OCTET, tall=32, wide=64, pieces=4)
DUET = Slices(64, 128, 8, 8, 32, 2, team=2, turn=2, resident=2)
QUARTET = Slices(64, 128, 8, 8, 64, 4, team=4, turn=2, pieces=3)
LEGION = Slices(256, 128, 8, 8, 16, 1, held=True)

# What a product takes on an H200, in microseconds, fitted to its records 2026-11-23-matmul.json and, for
# straight tiles, 2026-11-23-matmul-tiles.json.
ALONE_AND_EACH = {
    LARGE: (1.0, 5.1),
    MIDDLE: (1.3, 5.1),
    SMALL: (1.0, 5.8),
    LEAST: (8.3, 3.2),
    STRAIGHT: (1.5, 4.75),
    SLICED: (0.75, 4.9),
}
"""A million multiply-adds of a block: alone, and what each block on the same multiprocessor adds."""
EARLIER = (LARGE, MIDDLE, SMALL, LEAST)
SMALLEST = 1 << 24  # multiply-adds of the least product of the second record
ROUND = 3.5  # a block's beginning and end
LOAD, LOAD_ONE = 5.0, 145.0  # a million numbers to shared memory: in vectors, one by one
LOAD_STRAIGHT, LOAD_TURNED = 7.0, 34.0  # past the registers: one by one; of a second factor by terms
FILLS = (0, FILL // 2, FILL, 2 * FILL, 4 * FILL)  # blocks that are to share the terms; 0: none
SHARE = 0.22  # 4096 outputs that a block leaves for others, or adds up
MANY, SHARE_OF_MANY = (
    16,
    0.62,
)  # as many blocks and more wait for each other; of 2026-11-26-matmul-shapes.json

# Tiles of four stages, fitted to nvidia-h100/2026-11-25-matmul-stages.json. They are ahead of all others if
# all blocks run at once and have few terms: then few other blocks cover what a block waits for its loads.
DEEP_STAGE, DEEP_PART = 0.44, 0.31  # microseconds of DEEP for a stage, and for each block that shares a tile
DEEP_TERMS = (256, 512)  # of a block: where DEEP was ahead
AHEAD_PARTS, AHEAD_TERMS = 3, 512  # blocks that share a tile, at least, and terms of each, at most
ONCE = 1 << 26  # multiply-adds of the least product in which they were ahead


@dataclass(frozen=True)
class Times:
    """The times of blocks with teams of slices on an H200, in microseconds, fitted to a record.

    Attributes
    ----------
    begin : float
        A call, and a block's beginning and end.
    each : float
        A million multiply-adds of a block, for each block on the same multiprocessor.
    share : float
        4096 outputs that a block leaves for others, or adds up.
    load, ones : float
        A million numbers of an operand on their way to shared memory: in vectors, and one by one.
    once : bool
        Whether blocks may only be as many as run at once: more were not measured, or were slow.
    whole : bool
        Whether only products have it in which a tile checks no bound: with bounds, registers are short.
    """

    begin: float
    each: float
    share: float
    load: float
    ones: float
    once: bool = False
    whole: bool = False

    def of(self, tile: Tile, product: Product, parts: int, ways: tuple[Way, Way]) -> float:
        """Return what a product takes by a tile that some blocks share."""
        p = product
        span = -(-p.terms // parts)
        span = -(-span // tile.depth) * tile.depth
        parts = -(-p.terms // span)
        blocks = math.prod(p.batch) * -(-p.rows // tile.tall) * -(-p.columns // tile.wide) * parts
        rounds, rest = divmod(blocks, FILL * tile.resident)
        a, b = (self.ones if way.inner else self.load for way in ways)
        each = span / 1e6 * (tile.tall * tile.wide * self.each + tile.tall * a + tile.wide * b)
        found = rounds * (self.begin + tile.resident * each)
        if rest:
            found += self.begin + -(-rest // FILL) * each
        return found + self.share * (parts + 2) * tile.tall * tile.wide / 4096 * (parts > 1)


TEAMS = {
    OCTET: Times(6.7, 5.6, 0.5, 0.0, 25.0, once=True),
    BROAD: Times(6.7, 5.6, 0.5, 0.0, 25.0, once=True),
    DUET: Times(7.5, 4.8, 0.24, 3.0, 54.0),
    QUARTET: Times(6.7, 5.0, 0.31, 0.0, 33.0),
    LEGION: Times(13.3, 5.0, 0.10, 0.0, 0.0, whole=True),
}
"""Teams of slices that products have, and their times."""
CALL = 5.0  # microseconds that the cost of other tiles leaves out
LEAST_OF_TEAMS = 1 << 20  # multiply-adds of the least product that was measured


def _cost(terms: int, tiles: int, tile: Tile, parts: int, load: float) -> float:
    """Estimate what depends on the tile and on how many blocks share it, in microseconds."""
    span = -(-terms // parts)
    span = -(-span // tile.depth) * tile.depth
    parts = -(-terms // span)
    rounds, rest = divmod(tiles * parts, FILL * tile.resident)
    rest = -(-rest // FILL)  # blocks of a multiprocessor in the last round
    million, outputs = span / 1e6, tile.tall * tile.wide
    alone, each = (million * outputs * micros for micros in ALONE_AND_EACH[tile])
    each += million * (tile.tall + tile.wide) * load
    found = rounds * (ROUND + alone + tile.resident * each)
    if rest:
        found += ROUND + alone + rest * each
    if parts > 1:
        found += SHARE * (parts + 2) * outputs / 4096
    return found


def _wait(tile: Tile) -> float:
    """Estimate what ``_cost`` leaves out where many blocks share a tile, in microseconds."""
    many = tile.parts > MANY
    return (SHARE_OF_MANY - SHARE) * (tile.parts + 2) * tile.tall * tile.wide / 4096 * many


def _load(tile: Tile, a: Way, b: Way) -> float:
    """Estimate what a million numbers take on their way to shared memory, in microseconds."""
    if not (a.vectors and b.vectors):
        return LOAD_STRAIGHT if tile.straight else LOAD_ONE
    return LOAD_TURNED if tile.straight and b.inner else LOAD


def memory(device: torch.device) -> int:
    """Return how many bytes of shared memory a block may have on a device."""
    if device.type != "cuda":  # an emulator has as much as anyone wants
        return SHARED
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0))


def choose(product: Product, most: int = SHARED) -> Tile:
    """Return the tile of a product.

    Teams of slices where they are estimated to be ahead, else a tile of four stages where one was ahead on
    record, else the tile of the least cost.

    Parameters
    ----------
    most : int
        Bytes of shared memory that a block may have. On devices with less than the largest of ``TEAMS``
        needs, blocks share a product otherwise, so that some sums have another order.
    """
    found = of_teams(product, most) or in_one_round(product) or sent_one_by_one(product)
    return found or of_least_cost(product)


def of_teams(product: Product, most: int = SHARED) -> Slices | None:
    """Return the tile of ``TEAMS`` of the least estimated time; None where ``of_least_cost`` takes less."""
    p, ways = product, Way.both(product)
    count = math.prod(p.batch)
    if count * p.rows * p.columns * p.terms < LEAST_OF_TEAMS or not all(way.vectors for way in ways):
        return None
    found: dict[tuple[Slices, int], float] = {}
    for tile, times in TEAMS.items():
        tiles = count * -(-p.rows // tile.tall) * -(-p.columns // tile.wide)
        for parts in sorted({max(fill // tiles, 1) for fill in FILLS}):
            blocks = tiles * parts
            if (
                tile.shared <= most
                and p.terms >= tile.depth * parts
                and (blocks <= FILL * tile.resident or not times.once)
                and (tile.for_product(p).whole or not times.whole)
            ):
                found[tile, parts] = times.of(tile, p, parts, ways)
    if not found:
        return None
    tile, parts = min(found, key=found.__getitem__)
    other, cost = least_cost(product)
    if found[tile, parts] > cost + CALL + _wait(other):
        return None
    return replace(tile.for_product(p), parts=parts)


def in_one_round(product: Product) -> Tile | None:
    """Return ``DEEP``, a block for each multiprocessor, or ``AHEAD``, three, where all run at once."""
    p, (a, b) = product, Way.both(product)
    count = math.prod(p.batch)
    if count * p.rows * p.columns * p.terms < ONCE or not (a.vectors and b.vectors):
        return None
    tiles = count * -(-p.rows // DEEP.tall) * -(-p.columns // DEEP.wide)
    few, many = DEEP_TERMS
    found = {}
    for fill in (FILL // 2, FILL):
        parts = max(fill // tiles, 1)
        if tiles * parts <= FILL and few * parts <= p.terms <= many * parts:
            found[parts] = DEEP_STAGE * p.terms / parts / DEEP.depth + DEEP_PART * (parts > 1) * (parts + 2)
    if found:
        return replace(DEEP, parts=min(found, key=found.__getitem__))
    tiles = count * -(-p.rows // AHEAD.tall) * -(-p.columns // AHEAD.wide)
    parts = FILL * AHEAD.resident // tiles
    if tiles >= FILL // 2 and parts >= AHEAD_PARTS and p.terms <= AHEAD_TERMS * parts and not b.inner:
        return replace(AHEAD, parts=parts)
    return None


def sent_one_by_one(product: Product) -> Tile | None:
    """Return ``DEEP`` for few terms of operands without vectors: where it was ahead, at 127 and at 511."""
    p = product
    tiles = math.prod(p.batch) * -(-p.rows // DEEP.tall) * -(-p.columns // DEEP.wide)
    vectors = all(way.vectors for way in Way.both(product))
    measured = tiles * DEEP.tall * DEEP.wide * p.terms >= LEAST_OF_TEAMS
    few = p.terms < FILL or (p.terms <= DEEP_TERMS[1] and tiles >= FILL // 2)
    return DEEP if few and measured and tiles <= FILL and not vectors else None


def of_least_cost(product: Product) -> Tile:
    """Return the tile of the least cost; as many blocks share one as fill half a GPU to four."""
    return least_cost(product)[0]


def least_cost(product: Product) -> tuple[Tile, float]:
    """Return the tile of ``of_least_cost``, and its cost."""
    p = product
    terms, count = max(p.terms, 1), math.prod(p.batch)
    most = terms // (2 * LEAST.depth)
    ways, found = Way.both(p), {}
    measured = count * p.rows * p.columns * terms >= SMALLEST
    for tile in ALONE_AND_EACH if measured else EARLIER:
        load = _load(tile, *ways)
        tiles = max(count * -(-p.rows // tile.tall) * -(-p.columns // tile.wide), 1)
        for parts in sorted({max(min(fill // tiles, most), 1) for fill in FILLS}):
            found[tile, parts] = _cost(terms, tiles, tile, parts, load)
    tile, parts = min(found, key=found.__getitem__)
    return replace(tile, parts=parts), found[tile, parts]


def candidates(product: Product, most: int = SHARED) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    teams = (tile.for_product(product) for tile in TEAMS if tile.shared <= most)
    yield from dict.fromkeys((choose(product, most), *ALONE_AND_EACH, PAIR, DEEP, AHEAD, *teams))
