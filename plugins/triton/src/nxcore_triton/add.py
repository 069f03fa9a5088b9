"""add: flat memory where all operands lie alike, else tiles of rows and columns.

A tile's columns run along the innermost dimension, so that its index arithmetic is one division per
row, and an operand that is repeated along it is loaded from one place.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Reduction, TensorMeta, alike, broadcast_strides, collapse
from nxcore_triton import tile
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.sum import plan_reduction

DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit(do_not_specialize=["alpha"])
def add_flat(x, y, out, alpha, n, RESULT: tl.constexpr, BLOCK: tl.constexpr):
    """Write one block of x + alpha * y, rounded to RESULT on its way to the dtype of out."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = widen(tl.load(x + at, mask, other=0.0))
    total += alpha * widen(tl.load(y + at, mask, other=0.0))
    tl.store(out + at, narrow(widen(narrow(total, RESULT)), out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["alpha"])
def add_tiles(
    x,
    y,
    out,
    alpha,
    rows,
    columns,
    sizes,
    x_strides,
    y_strides,
    out_strides,
    x_column,
    y_column,
    out_column,
    RANK: tl.constexpr,
    WIDE: tl.constexpr,
    RESULT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write one tile of x + alpha * y; RANK dimensions make up the rows."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    across = tl.cdiv(columns, COLUMNS)
    row = program // across * ROWS + tl.arange(0, ROWS)
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    column = column.to(tl.int64)
    x_at = offset(row, sizes, x_strides, RANK)[:, None] + (column * x_column)[None, :]
    y_at = offset(row, sizes, y_strides, RANK)[:, None] + (column * y_column)[None, :]
    out_at = offset(row, sizes, out_strides, RANK)[:, None] + (column * out_column)[None, :]
    total = widen(tl.load(x + x_at, mask, other=0.0))
    total += alpha * widen(tl.load(y + y_at, mask, other=0.0))
    tl.store(out + out_at, narrow(widen(narrow(total, RESULT)), out.dtype.element_ty), mask)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(x, y, alpha, out)``; ``out`` may be None, x or y."""
    x, y, fresh = problem["x"], problem["y"], problem.outputs
    out = problem["out"] or fresh
    n, result = out.numel(), DTYPES[fresh.dtype]
    itemsize = max(m.element_size() for m in (x, y, out))
    block, warps = tile.flat(n, itemsize)
    fixed: tuple[Any, ...]
    if alike(out, x, y):
        grid = tile.cdiv(n, block)
        launch = Launch(add_flat, (grid,), problem.device, warps, RESULT=result, BLOCK=block)
        fixed = (n,)
    else:
        strides = (broadcast_strides(m, out.shape) for m in (x, y))
        sizes, (out_strides, *in_strides) = collapse(out.shape, out.strides, *strides)
        columns, rows = sizes[-1], n // sizes[-1]
        across = min(tile.power_of_two(columns), block)
        down = min(block // across, tile.power_of_two(rows))
        grid = tile.cdiv(columns, across) * tile.cdiv(rows, down)
        launch = Launch(
            add_tiles,
            (grid,),
            problem.device,
            warps,
            RANK=len(sizes) - 1,
            WIDE=n >= 2**30,  # numbers of rows and columns stay below, rounded up to whole tiles
            RESULT=result,
            ROWS=down,
            COLUMNS=across,
        )
        operands = (*in_strides, out_strides)
        # Triton takes no empty tuple; with RANK 0 this one isn't read.
        fixed = (
            rows,
            columns,
            sizes[:-1] or (1,),
            *(s[:-1] or (0,) for s in operands),
            *(s[-1] for s in operands),
        )

    def call(x: Tensor, y: Tensor, alpha: float, out: Tensor | None) -> Tensor:
        if out is None:
            out = fresh.empty()
        launch((x, y, out), x, y, out, float(alpha), *fixed)
        return out

    return call


Undo = Callable[[Tensor, float], Tensor]


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, Tensor | None]]:
    """Return the launches for one problem.

    It is called as ``call(grad, x_size, y_size, alpha, output_mask)``, which returns ``(x_grad, y_grad)``.
    """
    reductions = Reduction.of_add_backward(problem)
    undo_x, undo_y = (
        None if out is None else _undo(problem, out, reduction, scaled=i == 1)
        for i, (out, reduction) in enumerate(zip(problem.outputs, reductions, strict=True))
    )

    def call(grad: Tensor, x_size: Any, y_size: Any, alpha: float, output_mask: Any) -> Any:
        return (
            None if undo_x is None else undo_x(grad, 1.0),
            None if undo_y is None else undo_y(grad, float(alpha)),
        )

    return call


def _undo(problem: Problem, out: TensorMeta, reduction: Reduction | None, *, scaled: bool) -> Undo:
    size = out.shape

    def view(grad: Tensor, alpha: float) -> Tensor:
        return grad.view(size) if alpha == 1 else grad.view(size) * alpha

    if reduction is None:
        return view
    run = plan_reduction(reduction, problem.device, scaled=scaled)

    def total(grad: Tensor, alpha: float) -> Tensor:
        result = out.empty()
        run(grad, result, alpha)
        return result

    return total
