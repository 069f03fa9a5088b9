"""rope: a program turns a tile of rows, and then the further rows that the same angles turn."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from nxcore.plugin import Problem, Turned
from nxcore_triton import tile
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen


@triton.jit
def halves(
    values,
    start,
    entry,
    there,
    pairs,
    apart,
    NEIGHBOURS: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Return the first and the second entries of all pairs of rows."""
    if NEIGHBOURS:
        column = tl.arange(0, 2 * PAIRS).to(tl.int64)
        mask = there[:, None] & (column < 2 * pairs)[None, :]
        found = tl.load(values + start[:, None] + (column * entry)[None, :], mask, other=0.0)
        return tl.split(tl.reshape(widen(found), (ROWS, PAIRS, 2)))
    else:
        column = tl.arange(0, PAIRS).to(tl.int64)
        mask = there[:, None] & (column < pairs)[None, :]
        at = start[:, None] + (column * entry)[None, :]
        first = widen(tl.load(values + at, mask, other=0.0))
        return first, widen(tl.load(values + at + apart * entry, mask, other=0.0))


@triton.jit
def rope(
    x,
    cos,
    sin,
    out,
    count,
    repeats,
    pairs,
    rest,
    apart,
    rows,
    sizes,
    x_steps,
    cos_steps,
    sin_steps,
    out_steps,
    x_again,
    out_again,
    x_entry,
    cos_entry,
    sin_entry,
    RANK: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    EACH: tl.constexpr,
    BACK: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
):
    """Write ROWS rows of different angles, and ``rows`` of each; ``apart`` are a pair's angles."""
    tiles = tl.cdiv(count, ROWS)
    row = (tl.program_id(0) % tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first = (tl.program_id(0) // tiles).to(tl.int64) * rows
    there = row < count
    own, to = offset(row, sizes, x_steps, RANK), offset(row, sizes, out_steps, RANK)
    at, by = offset(row, sizes, cos_steps, RANK), offset(row, sizes, sin_steps, RANK)
    BESIDE: tl.constexpr = NEIGHBOURS and EACH
    c0, c1 = halves(cos, at, cos_entry, there, pairs, apart, BESIDE, ROWS, PAIRS)
    s0, s1 = halves(sin, by, sin_entry, there, pairs, apart, BESIDE, ROWS, PAIRS)
    if BACK:
        s0, s1 = -s1, -s0
    column = tl.arange(0, PAIRS).to(tl.int64)
    for step in range(rows):
        r = first + step
        there = (row < count) & (r < repeats)
        x0, x1 = halves(x, own + r * x_again, x_entry, there, pairs, pairs, NEIGHBOURS, ROWS, PAIRS)
        y0, y1 = x0 * c0 - x1 * s0, x1 * c1 + x0 * s1
        start = (to + r * out_again)[:, None]
        if NEIGHBOURS:
            both = tl.arange(0, 2 * PAIRS).to(tl.int64)
            made = narrow(tl.reshape(tl.join(y0, y1), (ROWS, 2 * PAIRS)), out.dtype.element_ty)
            tl.store(out + start + both[None, :], made, there[:, None] & (both < 2 * pairs)[None, :])
        else:
            mask = there[:, None] & (column < pairs)[None, :]
            tl.store(out + start + column[None, :], narrow(y0, out.dtype.element_ty), mask)
            tl.store(out + start + pairs + column[None, :], narrow(y1, out.dtype.element_ty), mask)
        if REST:
            more = tl.arange(0, REST).to(tl.int64)
            kept = there[:, None] & (more < rest)[None, :]
            more += 2 * pairs
            left = tl.load(x + (own + r * x_again)[:, None] + (more * x_entry)[None, :], kept, other=0.0)
            tl.store(out + start + more[None, :], left, kept)


SPAN = tile.TERMS // 2
"""Pairs of a tile."""

MOST = 4
"""The most rows that a program turns by the same angles, one after the other."""


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launch of ``rope``, or of its gradient, which turns back and reads no ``x``."""
    back = int(problem.op.endswith("_backward"))
    out = problem.outputs[0] if back else problem.outputs
    found = Turned.of(problem)
    pairs, rest = tile.power_of_two(found.pairs), tile.power_of_two(found.rest) if found.rest else 0
    down = max(min(tile.power_of_two(found.rows), SPAN // max(pairs, rest)), 1)
    tiles = tile.cdiv(found.rows, down)
    rows = max(min(MOST, found.repeats, tiles * found.repeats // tile.MAX_PROGRAMS), 1)
    launch = Launch(
        rope,
        (tiles * tile.cdiv(found.repeats, rows),),
        problem.device,
        4,
        RANK=max(len(found.sizes), 1),
        NEIGHBOURS=problem["interleaved"],
        EACH=found.each,
        BACK=bool(back),
        ROWS=down,
        PAIRS=pairs,
        REST=rest,
    )
    fixed = (
        *(found.rows, found.repeats, found.pairs, found.rest, found.pairs if found.each else 0, rows),
        *(walk or (1,) for walk in (found.sizes, *found.steps)),  # Triton takes no empty tuple
        *(found.again[0], found.again[3], *found.entry[:3]),
    )

    def call(x: Any, *rest: Any) -> Any:
        result = out.empty()
        tensors = (x, *rest[back : back + 2], result)
        launch(tensors, *tensors, *fixed)
        return (result, None, None) if back else result

    return call
