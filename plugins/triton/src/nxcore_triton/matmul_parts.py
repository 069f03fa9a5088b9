"""matmul in the class fp32x by parts of 8 bits: one launch splits the factors, a second multiplies parts.

A float32 number is the sum of three bfloat16 numbers. Of the nine products of parts, tensor cores compute
the six largest. Parts lie in memory as the second launch reads them: a block of lines and terms is a run
of numbers, for each of the three parts.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Product, TensorMeta
from nxcore_triton import tile as blocks
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch

PARTS = tl.constexpr(3)
UNIT = 64  # lines that a program of the first launch splits
INTERPRETED = tl.constexpr(blocks.INTERPRETED)


@dataclass(frozen=True)
class Tile:
    """A program's rows and columns, terms of a step, steps in shared memory, warps, and tiles of a group.

    A group is as many tiles below each other: programs that run at once share more of what they read.
    """

    tall: int = 128
    wide: int = 64
    depth: int = 32
    stages: int = 3
    warps: int = 4
    group: int = 8


@triton.jit
def shortened(x):
    """Return the bits of the nearest numbers of 8 bits; no finite one becomes infinite, NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    near = bits + 0x7FFF + ((bits >> 16) & 1)
    near = tl.where((near & 0x7F800000) == 0x7F800000, bits, near)
    near = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, near)
    return near & 0xFFFF0000


@triton.jit
def keep(at, bits):
    """Store the upper halves of float32 numbers."""
    tl.store(at, (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True))


@triton.jit
def split(
    a,
    b,
    a_parts,
    b_parts,
    rows,
    columns,
    terms,
    steps,
    a_units,
    a_steps,
    b_steps,
    sizes,
    a_batch,
    b_batch,
    RANK: tl.constexpr,
    TALL: tl.constexpr,
    ACROSS: tl.constexpr,
    DEPTH: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Write the parts of UNIT x DEPTH numbers; program axes: lines of a, then of b, by terms; products."""
    unit, step = tl.program_id(0) // steps, tl.program_id(0) % steps
    if unit < a_units:
        _split(a, a_parts, unit, step, rows, terms, steps, a_steps, sizes, a_batch, RANK, TALL, DEPTH, UNIT)
    else:
        unit -= a_units
        _split(
            b, b_parts, unit, step, columns, terms, steps, b_steps, sizes, b_batch, RANK, ACROSS, DEPTH, UNIT
        )


@triton.jit
def _split(
    x,
    parts,
    unit,
    step,
    lines,
    terms,
    steps,
    x_steps,
    sizes,
    batch,
    RANK: tl.constexpr,
    SIDE: tl.constexpr,
    DEPTH: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Write the parts of one operand; beyond its lines and terms they are zero."""
    product = tl.program_id(1)
    line = unit * UNIT + tl.arange(0, UNIT)
    term = step * DEPTH + tl.arange(0, DEPTH)
    x += offset(product, sizes, batch, RANK)
    at = x + line.to(tl.int64)[:, None] * x_steps[0] + term.to(tl.int64)[None, :] * x_steps[1]
    value = tl.load(at, (line < lines)[:, None] & (term < terms)[None, :], other=0.0)
    first = shortened(value)
    # An infinite number has no rest.
    rest = tl.where((first & 0x7F800000) != 0x7F800000, value - first.to(tl.float32, bitcast=True), 0.0)
    second = shortened(rest)
    third = (rest - second.to(tl.float32, bitcast=True)).to(tl.uint32, bitcast=True)
    block = product * tl.cdiv(lines, SIDE) + unit // (SIDE // UNIT)
    parts += (block.to(tl.int64) * steps + step) * (PARTS * SIDE * DEPTH)
    to = (unit % (SIDE // UNIT) * UNIT + tl.arange(0, UNIT))[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    keep(parts + to, first)
    keep(parts + SIDE * DEPTH + to, second)
    keep(parts + 2 * SIDE * DEPTH + to, third)


@triton.jit
def part(at):
    """Load parts, as float32 for the interpreter: it would multiply the bits of bfloat16 numbers."""
    found = tl.load(at)
    if INTERPRETED:
        found = (found.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return found


@triton.jit
def multiply(
    a,
    b,
    out,
    rows,
    columns,
    steps,
    out_steps,
    sizes,
    out_batch,
    RANK: tl.constexpr,
    TALL: tl.constexpr,
    ACROSS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Write TALL x ACROSS outputs of parts; program axes: tiles, products."""
    down, across = tl.cdiv(rows, TALL), tl.cdiv(columns, ACROSS)
    above = tl.program_id(0) // (GROUP * across) * GROUP
    within = tl.program_id(0) % (GROUP * across)
    i, j = above + within % tl.minimum(down - above, GROUP), within // tl.minimum(down - above, GROUP)
    product = tl.program_id(1)
    a += (product * down + i).to(tl.int64) * steps * (PARTS * TALL * DEPTH)
    b += (product * across + j).to(tl.int64) * steps * (PARTS * ACROSS * DEPTH)
    x_at = tl.arange(0, TALL)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    y_at = tl.arange(0, ACROSS)[None, :] * DEPTH + tl.arange(0, DEPTH)[:, None]
    total = tl.zeros([TALL, ACROSS], tl.float32)
    for _ in tl.range(0, steps, num_stages=STAGES):
        x, y = part(a + x_at), part(b + y_at)
        x_next, y_next = part(a + TALL * DEPTH + x_at), part(b + ACROSS * DEPTH + y_at)
        x_last, y_last = part(a + 2 * TALL * DEPTH + x_at), part(b + 2 * ACROSS * DEPTH + y_at)
        # Tensor cores cut sums off, so a step's sums begin at zero.
        great = tl.dot(x, y)
        less = tl.dot(x_next, y_next)
        less = tl.dot(x_last, y, less)
        less = tl.dot(x, y_last, less)
        less = tl.dot(x_next, y, less)
        less = tl.dot(x, y_next, less)
        # An infinite factor by a later part that is zero is NaN: the products of first parts tell what it is.
        total += tl.where(tl.abs(great) < float("inf"), great + less, great)
        a += PARTS * TALL * DEPTH
        b += PARTS * ACROSS * DEPTH
    out += offset(product, sizes, out_batch, RANK)
    r, c = i * TALL + tl.arange(0, TALL), j * ACROSS + tl.arange(0, ACROSS)
    at = out + r.to(tl.int64)[:, None] * out_steps[0] + c.to(tl.int64)[None, :] * out_steps[1]
    tl.store(at, total, (r < rows)[:, None] & (c < columns)[None, :])


Run = Callable[[Tensor, Tensor, Tensor], None]


def plan_product(product: Product, device: torch.device, tile: Tile | None = None) -> Run:
    """Return the launches of products that have terms and outputs.

    It is called as ``run(a, b, out)``, with the operands of ``product``.
    """
    p, chosen, count = product, tile or Tile(), math.prod(product.batch)
    down, across = blocks.cdiv(p.rows, chosen.tall), blocks.cdiv(p.columns, chosen.wide)
    steps = blocks.cdiv(p.terms, chosen.depth)
    a_units, b_units = down * chosen.tall // UNIT, across * chosen.wide // UNIT
    shared = {"RANK": len(p.batch), "TALL": chosen.tall, "ACROSS": chosen.wide, "DEPTH": chosen.depth}
    first = Launch(split, ((a_units + b_units) * steps, count), device, **shared, UNIT=UNIT)
    grid, more = (down * across, count), {"STAGES": chosen.stages, "GROUP": chosen.group}
    second = Launch(multiply, grid, device, warps=chosen.warps, **shared, **more)
    # Triton takes no empty tuple; with rank 0 these aren't read.
    sizes, batches = p.batch or (1,), (p.a_batch or (0,), p.b_batch or (0,))
    before = (p.rows, p.columns, p.terms, steps, a_units, p.a, p.b, sizes, *batches)
    after = (p.rows, p.columns, steps, p.out, sizes, p.out_batch or (0,))
    a_room, b_room = (
        TensorMeta.row_major((count, n, steps, 3, side, chosen.depth), torch.bfloat16, device)
        for n, side in ((down, chosen.tall), (across, chosen.wide))
    )

    def run(a: Tensor, b: Tensor, out: Tensor) -> None:
        a_parts, b_parts = a_room.empty(), b_room.empty()
        first((a, b, a_parts, b_parts), a, b, a_parts, b_parts, *before)
        second((a_parts, b_parts, out), a_parts, b_parts, out, *after)

    return run


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launches for one problem: ``call(a, b, precision)``."""
    product = Product.of(problem["a"], problem["b"], problem.outputs)
    return product.bound(problem.outputs, plan_product(product, problem.device, tile))


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    if problem.outputs.numel():
        yield from (Tile(), Tile(64, 128), Tile(128, 128, warps=8))
