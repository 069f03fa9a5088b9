"""embedding: a program copies a tile of rows that indices name."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from nxcore.plugin import Problem
from nxcore_triton import tile
from nxcore_triton.cross_entropy import end_if
from nxcore_triton.launch import Launch


@triton.jit
def embedding(index, weight, out, rows, count, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Copy COLUMNS of ROWS rows."""
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = at < count
    row = tl.load(index + at, there, other=0).to(tl.int64)
    wrong = there & ((row < 0) | (row >= rows))
    end_if(wrong)
    mask = (there & (wrong == 0))[:, None] & (column < columns)[None, :]
    found = tl.load(weight + row[:, None] * columns + column[None, :], mask, other=0.0)
    tl.store(out + at[:, None] * columns + column[None, :], found, mask)


SPAN, WIDEST = tile.TERMS, 1024
"""Elements of a tile, and the most of them that are of one row."""


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launch for one problem, ``call(input, weight, ...)``."""
    out, count = problem.outputs, problem["input"].numel()
    rows, columns = problem["weight"].shape
    across = min(tile.power_of_two(columns), WIDEST)
    down = min(SPAN // across, tile.power_of_two(count))
    grid = (tile.cdiv(count, down), tile.cdiv(columns, across))
    launch = Launch(embedding, grid, problem.device, ROWS=down, COLUMNS=across)

    def call(index: Any, weight: Any, *_: Any) -> Any:
        result = out.empty()
        tensors = (index, weight, result)
        launch(tensors, *tensors, rows, count, columns)
        return result

    return call
