"""Lines: the tile of a program, whole lines or a part of one, and the elements of it."""

# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from nxcore.plugin import Lines
from nxcore_triton import tile
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen

WHOLE = 32768
"""Entries of the longest line that a program holds whole."""

PART = 8192
"""Entries of a part of a longer line."""

SHORT = 4096
"""Entries of a program that has several lines."""


@triton.jit
def place(count, inner, outer, within, ROWS: tl.constexpr):
    """Return the lines of this program, which of them are there, and where each begins."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return line, line < count, starts(line, inner, outer, within)


@triton.jit
def starts(line, inner, outer, within):
    """Return where lines begin in a tensor."""
    return line // inner * outer + line % inner * within


@triton.jit
def load(x, start, entry, column, mask, other: tl.constexpr):
    """Return a tile in float32; ``other`` where there is nothing."""
    return widen(tl.load(x + start[:, None] + column[None, :] * entry, mask, other=other))


@triton.jit
def store(out, start, entry, column, mask, values):
    """Round a tile to ``out``."""
    at = start[:, None] + column[None, :] * entry
    tl.store(out + at, narrow(values, out.dtype.element_ty), mask)


def tile_of(found: Lines) -> tuple[int, int]:
    """Return the lines that a program has, and the entries of one that it has whole."""
    columns = max(tile.power_of_two(found.length), 2)
    most = (tile.TERMS if tile.INTERPRETED else SHORT) // columns
    return max(min(tile.power_of_two(found.count), most), 1), columns


def launch(kernel: Any, device: torch.device, found: Lines, **constants: Any) -> Launch:
    """Return the launch of a kernel on lines; its constants are ROWS, COLUMNS and WHOLE."""
    rows, columns = tile_of(found)
    whole = columns <= WHOLE
    grid = (tile.cdiv(found.count, rows),)
    columns = columns if whole else PART
    warps = max(min(rows * columns // 512, 16), 4) if columns < WHOLE else 32
    return Launch(kernel, grid, device, warps, **constants, ROWS=rows, COLUMNS=columns, WHOLE=whole)
