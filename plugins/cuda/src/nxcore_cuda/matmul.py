"""matmul: tiles of outputs in registers, terms through stages of shared memory, no tensor core.

Where a product has few tiles, slices of a block share its terms, and several blocks share a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nxcore.plugin import Problem, Product, TensorMeta
from nxcore_cuda.layout import DIMS, STRIDES, dims, steps
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher, ticket
from nxcore_cuda.matmul_kept import KEPT, candidates, choose
from nxcore_cuda.matmul_kept import instance as kept
from nxcore_cuda.matmul_tiles import (
    AHEAD,
    ALONE_AND_EACH,
    BROAD,
    DEEP,
    DUET,
    FILL,
    LARGE,
    LEAST,
    LEGION,
    MIDDLE,
    OCTET,
    PAIR,
    QUARTET,
    SLICED,
    SMALL,
    STRAIGHT,
    TEAMS,
    Slices,
    Tile,
    in_one_round,
    memory,
    of_least_cost,
)
from nxcore_cuda.matmul_way import FOUR, Way

__all__ = [
    "AHEAD",
    "ALONE_AND_EACH",
    "BROAD",
    "DEEP",
    "DUET",
    "FILL",
    "FOUR",
    "KEPT",
    "LARGE",
    "LEAST",
    "LEGION",
    "MIDDLE",
    "OCTET",
    "PAIR",
    "PROOFS",
    "QUARTET",
    "SLICED",
    "SMALL",
    "STRAIGHT",
    "TEAMS",
    "Run",
    "Slices",
    "Tile",
    "Way",
    "branch",
    "candidates",
    "choose",
    "in_one_round",
    "instances",
    "memory",
    "of_least_cost",
    "plan",
    "plan_product",
    "proofs",
    "sweep",
]

Run = Callable[[Tensor, Tensor, Tensor], None]


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time: rows by columns, rows by rows."""
    bounded = (tile for tile, times in TEAMS.items() if not times.whole)
    whole = (replace(tile, whole=True) for tile in TEAMS)
    for tile in (*ALONE_AND_EACH, DEEP, AHEAD, *bounded, *whole):
        for vectors in (True, False):
            for inner in (False, True):
                yield tile.instance(Way(inner=True, vectors=vectors), Way(inner, vectors))
    yield from map(kept, (False, True))


def plan_product(product: Product, device: torch.device, tile: Tile | None = None) -> Run:
    """Return the launch of products that have terms and outputs.

    It is called as ``run(a, b, out)``, with the operands of ``product``.
    """
    chosen, p = tile or choose(product, memory(device)), product
    span = -(-p.terms // chosen.parts)
    span = -(-span // chosen.depth) * chosen.depth
    parts = -(-p.terms // span)
    down, across = -(-p.rows // chosen.tall), -(-p.columns // chosen.wide)
    count = math.prod(p.batch)
    tiles = down * across * count

    def launch(a: Way, b: Way, *, whole: bool) -> Launcher:
        values = (
            *(*p.a, *p.b, *p.out),
            *(p.rows, p.columns, p.terms, span, across, int(whole)),
            *(*dims(p.batch), *steps(p.a_batch), *steps(p.b_batch), *steps(p.out_batch)),
        )
        return Launch(
            chosen.instance(a, b),
            device,
            (down * across, parts, count),
            chosen.threads,
            shared=chosen.shared,
            pointers=5,
            layout=f"6q6i{DIMS}{3 * STRIDES}",
            values=values,
        )

    by_a, by_b = Way.both(p)
    whole = p.out[1] == 1 and all(s % FOUR == 0 for s in (p.out[0], *p.out_batch))
    scalar = launch(replace(by_a, vectors=False), replace(by_b, vectors=False), whole=False)
    vector = launch(by_a, by_b, whole=whole) if by_a.vectors or by_b.vectors or whole else None
    guarded = Guarded(vector, scalar)
    size = tiles * parts * chosen.tall * chosen.wide
    found = TensorMeta((size,), (1,), torch.float32, device)

    def run(a: Tensor, b: Tensor, out: Tensor) -> None:
        shares, arrivals = (found.empty(), ticket(device, tiles)) if parts > 1 else (None, None)
        guarded(a, b, out, shares, arrivals)

    return run


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(a, b, precision)``."""
    product = Product.of(problem["a"], problem["b"], problem.outputs)
    return product.bound(problem.outputs, plan_product(product, problem.device, tile))


def branch(problem: Problem) -> tuple[int, int, int, int, bool]:
    """Return the size of a tile, its slices and stages, and whether blocks share it."""
    tile = choose(Product.of(problem["a"], problem["b"], problem.outputs), memory(problem.device))
    return tile.tall, tile.wide, tile.slices, tile.stages, tile.parts > 1


PROOFS = {
    **{
        tile: (name, f"{name}_around", f"{name}_at_an_edge", f"{name}_shared")
        for tile, name in (
            (OCTET, "eight_slices"),
            (BROAD, "eight_broad_slices"),
            (DUET, "two_slices"),
            (QUARTET, "four_slices"),
        )
    },
    KEPT: ("eight_broad_slices_kept",),
    LEGION: ("sixteen_warps", "sixteen_warps_shared"),
}
"""The samples that have a tile, by names: alone, with bounds to check, and of a batch that blocks share."""


def proofs(problem: Problem) -> tuple[str, ...]:
    """Return the samples that verify the tile of a problem, where the smoke samples have others."""
    tile = choose(Product.of(problem["a"], problem["b"], problem.outputs), memory(problem.device))
    if not isinstance(tile, Slices):
        return ()
    end = "_shared" if tile.whole else "_at_an_edge"
    names = PROOFS[tile.kind]
    if tile.alone:
        return tuple(name for name in names if not name.endswith(("_shared", "_at_an_edge")))
    return tuple(name for name in names if name.endswith(end))


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    if problem.outputs.numel():
        product = Product.of(problem["a"], problem["b"], problem.outputs)
        yield from candidates(product, memory(problem.device))
