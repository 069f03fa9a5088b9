"""matmul in the class fp32x: split factors on tensor cores; see ``matmul_split.cu``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from nxcore.plugin import Problem, Product
from nxcore_cuda import matmul
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.matmul import FILL, Tile, Way

WARP = 32
WIDER = 8  # floats between the terms of a stage, as in operand.cuh


@dataclass(frozen=True)
class Split(Tile):
    """How a block and its warps share a product: ``rows`` and ``columns`` are a warp's.

    Attributes
    ----------
    rounded : bool
        Whether low parts are rounded to 11 bits, else tensor cores cut them there.
    """

    rounded: bool = True

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tall * self.wide // (self.rows * self.columns) * WARP

    @property
    def shared(self) -> int:
        """Bytes of shared memory: two stages."""
        return 4 * 2 * self.depth * (self.tall + self.wide + 2 * WIDER)

    def instance(self, a: Way, b: Way) -> Instance:
        """Return its kernel."""
        sizes = (self.tall, self.wide, self.rows, self.columns, self.depth)
        rest = () if self.rounded and not self.straight else (self.rounded, self.straight)
        arguments = (*sizes, a.inner, a.vectors, b.inner, b.vectors, *rest)
        return Instance(
            "matmul_split", arguments, args="matmul_args", threads=self.threads, blocks=self.resident
        )


LARGE = Split(128, 128, 64, 32, 32)
SMALL = Split(64, 64, 32, 32, 32, resident=2)


def choose(product: Product) -> Split:
    """Return the tile for a product: the larger one where its blocks fill a GPU, else a shared one."""

    def blocks(tile: Split) -> int:
        down, across = -(-product.rows // tile.tall), -(-product.columns // tile.wide)
        return math.prod(product.batch) * down * across

    if min(product.rows, product.columns) > SMALL.tall and blocks(LARGE) >= FILL * 3 // 4:
        return LARGE
    parts = min(FILL // blocks(SMALL), product.terms // (4 * SMALL.depth))
    return replace(SMALL, parts=max(parts, 1))


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time: rows by columns, rows by rows."""
    for tile in (LARGE, SMALL):
        for vectors in (True, False):
            for inner in (False, True):
                yield tile.instance(Way(inner=True, vectors=vectors), Way(inner, vectors))


def plan(problem: Problem, tile: Split | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(a, b, precision)``."""
    product = Product.of(problem["a"], problem["b"], problem.outputs)
    return matmul.plan(problem, tile or choose(product))


def branch(problem: Problem) -> tuple[int, int, bool]:
    """Return the size of a tile, and whether blocks share it."""
    tile = choose(Product.of(problem["a"], problem["b"], problem.outputs))
    return tile.tall, tile.wide, tile.parts > 1


def sweep(problem: Problem) -> Iterator[Split]:
    """Yield the tiles worth timing."""
    if problem.outputs.numel():
        first = choose(Product.of(problem["a"], problem["b"], problem.outputs))
        yield from dict.fromkeys((first, LARGE, SMALL))
