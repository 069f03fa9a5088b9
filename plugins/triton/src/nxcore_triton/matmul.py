"""matmul: tiles of outputs, terms a few at a time, each by one fused multiply-add; no tensor core.

Or, in the class fp32x, by three products of split factors on tensor cores.

Where a product has few tiles, several programs share one, and a second launch adds up what they found,
in fixed order.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Product, Reduction, TensorMeta
from nxcore_triton import tile as blocks
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch
from nxcore_triton.sum import plan_reduction

FILL = 132  # programs that fill a large GPU; a constant, so that a product has the same bits on every device


@dataclass(frozen=True)
class Tile:
    """A program's rows and columns, terms of a step, programs that share a tile, warps, and precision.

    The precision is Triton's word for it: ``ieee``, or ``tf32x3``, three products of split factors.
    """

    tall: int
    wide: int
    depth: int
    parts: int = 1
    warps: int = 8
    precision: str = "ieee"


@triton.jit
def multiply(
    a,
    b,
    out,
    rows,
    columns,
    terms,
    span,
    part_step,
    a_steps,
    b_steps,
    out_steps,
    sizes,
    a_batch,
    b_batch,
    out_batch,
    RANK: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    ACROSS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write TALL x ACROSS outputs of up to span terms; program axes: tiles, parts, products."""
    across = tl.cdiv(columns, ACROSS)
    r = tl.program_id(0) // across * TALL + tl.arange(0, TALL)
    c = tl.program_id(0) % across * ACROSS + tl.arange(0, ACROSS)
    first = tl.program_id(1) * span
    k = first + tl.arange(0, DEPTH)
    product = tl.program_id(2)
    a += offset(product, sizes, a_batch, RANK)
    b += offset(product, sizes, b_batch, RANK)
    out += offset(product, sizes, out_batch, RANK) + tl.program_id(1).to(tl.int64) * part_step
    down, along, term = r, c, k
    if WIDE:
        down, along, term = r.to(tl.int64), c.to(tl.int64), k.to(tl.int64)
    x_at = a + down[:, None] * a_steps[0] + term[None, :] * a_steps[1]
    y_at = b + term[:, None] * b_steps[1] + along[None, :] * b_steps[0]
    last = tl.minimum(first + span, terms)
    total = tl.zeros([TALL, ACROSS], tl.float32)
    for start in range(first, last, DEPTH):
        inside = start + tl.arange(0, DEPTH) < last
        x = tl.load(x_at, (r < rows)[:, None] & inside[None, :], other=0.0)
        y = tl.load(y_at, inside[:, None] & (c < columns)[None, :], other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        x_at += DEPTH * a_steps[1]
        y_at += DEPTH * b_steps[1]
    out_at = out + down[:, None] * out_steps[0] + along[None, :] * out_steps[1]
    tl.store(out_at, total, (r < rows)[:, None] & (c < columns)[None, :])


def choose(product: Product) -> Tile:
    """Return the tile for a product: the largest whose programs fill a GPU, else shared terms."""
    count = math.prod(product.batch)

    def programs(tile: Tile) -> int:
        down, across = blocks.cdiv(product.rows, tile.tall), blocks.cdiv(product.columns, tile.wide)
        return count * down * across

    tall = min(128, max(16, 1 << (product.rows - 1).bit_length()))
    wide = min(128, max(16, 1 << (product.columns - 1).bit_length()))
    tile = Tile(tall, wide, 16)
    while programs(tile) < FILL and max(tile.tall, tile.wide) > 64:
        tile = replace(tile, tall=min(tile.tall, 64)) if tile.tall >= tile.wide else replace(tile, wide=64)
    if min(tile.tall, tile.wide) >= 64:
        tile = replace(tile, depth=32)
    warps = min(max(tile.tall * tile.wide // 1024, 1), 8)
    parts = min(FILL // programs(tile), product.terms // 64)
    return replace(tile, parts=max(parts, 1), warps=warps)


def candidates(product: Product) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    first = choose(product)
    yield from dict.fromkeys(
        (
            first,
            *(replace(first, depth=depth) for depth in (16, 32, 64)),
            *(replace(first, warps=warps) for warps in (4, 8) if warps != first.warps),
            *(replace(first, tall=tall, wide=wide) for tall, wide in ((128, 128), (128, 64), (64, 64))),
        )
    )


Run = Callable[[Tensor, Tensor, Tensor], None]


def plan_product(product: Product, device: torch.device, tile: Tile | None = None) -> Run:
    """Return the launches of products that have terms and outputs.

    It is called as ``run(a, b, out)``, with the operands of ``product``.
    """
    p, chosen = product, tile or choose(product)
    span = blocks.cdiv(blocks.cdiv(p.terms, chosen.parts), chosen.depth) * chosen.depth
    parts = blocks.cdiv(p.terms, span)
    count = math.prod(p.batch)
    outputs = count * p.rows * p.columns
    reach = [(p.rows, p.a[0]), (p.terms, p.a[1]), (p.columns, p.b[0]), (p.terms, p.b[1])]
    reach += [(p.rows, p.out[0]), (p.columns, p.out[1]), (max(p.rows, p.columns), 2)]
    launch = Launch(
        multiply,
        (blocks.cdiv(p.rows, chosen.tall) * blocks.cdiv(p.columns, chosen.wide), parts, count),
        device,
        warps=chosen.warps,
        RANK=len(p.batch),
        WIDE=any(n * s >= 2**30 for n, s in (*reach, (p.columns, p.out[1])))
        or max(p.rows, p.columns) >= 2**30,
        TALL=chosen.tall,
        ACROSS=chosen.wide,
        DEPTH=chosen.depth,
        PRECISION=chosen.precision,
    )
    # Triton takes no empty tuple; with rank 0 these aren't read.
    shape = p.batch or (1,)
    steps = (p.a_batch or (0,), p.b_batch or (0,))
    sizes = (p.rows, p.columns, p.terms, span)
    if parts == 1:
        fixed = (*sizes, 0, p.a, p.b, p.out, shape, *steps, p.out_batch or (0,))

        def run(a: Tensor, b: Tensor, out: Tensor) -> None:
            launch((a, b, out), a, b, out, *fixed)

        return run
    each = p.rows * p.columns
    counted = tuple(each * math.prod(p.batch[i + 1 :]) for i in range(len(p.batch)))
    fixed = (*sizes, outputs, p.a, p.b, (p.columns, 1), shape, *steps, counted or (0,))
    kept = (
        *zip(p.batch, counted, p.out_batch, strict=True),
        (p.rows, p.columns, p.out[0]),
        (p.columns, 1, p.out[1]),
    )
    conclude = plan_reduction(Reduction(_merged(kept), ((parts, outputs),)), device)
    found = TensorMeta((parts, outputs), (outputs, 1), torch.float32, device)

    def run_shared(a: Tensor, b: Tensor, out: Tensor) -> None:
        shares = found.empty()
        launch((a, b), a, b, shares, *fixed)
        conclude(shares, out, 1.0)

    return run_shared


def _merged(dims: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
    """Return the fewest dimensions that say the same."""
    found: list[tuple[int, int, int]] = []
    for n, *steps in (d for d in dims if d[0] != 1):
        if found and all(outer == n * inner for outer, inner in zip(found[-1][1:], steps, strict=True)):
            found[-1] = (found[-1][0] * n, *steps)
        else:
            found.append((n, *steps))
    return tuple(found)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launches for one problem: ``call(a, b, precision)``."""
    product = Product.of(problem["a"], problem["b"], problem.outputs)
    return product.bound(problem.outputs, plan_product(product, problem.device, tile))


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    if problem.outputs.numel():
        yield from candidates(Product.of(problem["a"], problem["b"], problem.outputs))


def split(tile: Tile) -> Tile:
    """Return a tile of the class fp32x: tensor cores multiply split factors, and want more terms at once."""
    return replace(tile, depth=32, precision="tf32x3")


def plan_split(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launches for one problem in the class fp32x."""
    return plan(problem, tile or split(choose(Product.of(problem["a"], problem["b"], problem.outputs))))


def sweep_split(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles of the class fp32x worth timing."""
    yield from dict.fromkeys(map(split, sweep(problem)))
