"""The tile of products of few terms: every stage of shared memory has a place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nxcore.plugin import Product
from nxcore_cuda import matmul_tiles
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.matmul_tiles import BROAD, SHARED, Slices, Tile
from nxcore_cuda.matmul_way import Way


@dataclass(frozen=True)
class Kept(Slices):
    """How a block and its threads share one product, where no thread waits for another in the loop.

    Attributes
    ----------
    ahead : int
        Stages that are on their way.
    """

    ahead: int = 3

    def instance(self, a: Way, b: Way) -> Instance:
        """Return its kernel; where operands fill no vectors, that of ``BROAD``, whose blocks are the same."""
        if not (a.vectors and b.vectors):
            return BROAD.instance(a, b)
        sizes = (self.tall, self.wide, self.rows, self.columns, self.run, self.slices)
        shared = (self.stages, self.ahead, self.pieces)
        arguments = (*sizes, *shared, a.inner, b.inner, self.whole)
        return Instance("matmul_kept", arguments, threads=self.threads, blocks=self.resident)


KEPT = Kept(32, 64, 8, 8, 64, 8, team=8, stages=8, pieces=7)
TERMS = (384, KEPT.stages * KEPT.depth)
"""The terms for which it was measured; more have no place."""


def choose(product: Product, most: int = SHARED) -> Tile:
    """Return the tile of a product: ``KEPT`` where ``BROAD`` would be alone and all terms have a place."""
    tile = matmul_tiles.choose(product, most)
    broad = isinstance(tile, Slices) and tile.kind == BROAD and tile.alone
    if broad and TERMS[0] <= product.terms <= TERMS[1] and KEPT.shared <= most:
        return KEPT.for_product(product)
    return tile


def candidates(product: Product, most: int = SHARED) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from dict.fromkeys((choose(product, most), *matmul_tiles.candidates(product, most)))


def instance(inner: bool) -> Instance:
    """Return the kernel of rows by columns, or by rows."""
    return replace(KEPT, whole=True).instance(Way(inner=True, vectors=True), Way(inner, vectors=True))
