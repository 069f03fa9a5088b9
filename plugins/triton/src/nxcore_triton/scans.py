"""cumsum and its gradient: a program scans a tile of a few lines, and goes on from what it came to."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Lines, Problem
from nxcore_triton import tile
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import INTERPRETED, narrow, widen

ENTRIES = tile.TERMS
"""Entries of a tile."""

ACROSS = 32
"""The most lines of a tile whose neighbours in memory belong to different lines."""


@triton.jit
def scans(x, out, count, inner, length, steps, BACK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the sums of ROWS lines, COLUMNS entries at a time."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = (line < count)[:, None]
    x += (line // inner * steps[3] + line % inner * steps[4])[:, None]
    out += (line // inner * steps[0] + line % inner * steps[1])[:, None]
    column = tl.arange(0, COLUMNS).to(tl.int64)
    carry = tl.zeros((ROWS,), tl.float32)
    for first in range(0, length, COLUMNS):
        mask = there & (first + column < length)[None, :]
        at = first + column
        if BACK:
            at = length - 1 - at
        value = widen(tl.load(x + at[None, :] * steps[5], mask, other=0.0))
        if INTERPRETED:  # it adds up one after the other, where a GPU's threads do in a tree
            value = value.to(tl.float64)
        found = carry[:, None] + tl.cumsum(value, 1).to(tl.float32)
        # Triton's compiler fails on a sum of what was loaded itself (an assertion of OptimizeThreadLocality).
        carry += tl.sum(tl.where(mask, value, 0.0), 1).to(tl.float32)
        tl.store(out + at[None, :] * steps[2], narrow(found, out.dtype.element_ty), mask)


def shape_of(found: Lines) -> tuple[int, int]:
    """Return the lines and the entries of a tile."""
    if found.steps[0][2] == 1:
        columns = min(max(tile.power_of_two(found.length), 2), ENTRIES)
        return max(min(ENTRIES // columns, tile.power_of_two(found.count)), 1), columns
    rows = min(tile.power_of_two(found.count), ACROSS)
    return rows, max(min(tile.power_of_two(found.length), ENTRIES // rows), 2)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, ...)``."""
    out, found = problem.outputs, Lines.along(problem)
    back = problem.op.endswith("_backward")
    rows, columns = shape_of(found)
    grid = (tile.cdiv(found.count, rows),)
    run = Launch(scans, grid, problem.device, BACK=back, ROWS=rows, COLUMNS=columns)
    rest = (found.count, found.inner, found.length, tuple(n for step in found.steps for n in step))

    def call(x: Tensor, *_: Any) -> Tensor:
        result: Tensor = out.empty()
        run((x, result), x, result, *rest)
        return result

    return call
