"""rms_norm: a program has whole lines, or reads parts of a longer one twice; the weight's by columns."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Lines, Problem, TensorMeta
from nxcore_triton import lines, tile
from nxcore_triton.launch import Launch
from nxcore_triton.lines import load, place, starts, store
from nxcore_triton.rounding import narrow, widen


@triton.jit
def factor(weight, column, length, WEIGHTED: tl.constexpr):
    """Return the weight of some columns as a row."""
    if WEIGHTED:
        return widen(tl.load(weight + column, column < length, other=0.0))[None, :]
    else:
        return tl.full((1, column.shape[0]), 1.0, tl.float32)


@triton.jit(do_not_specialize=["eps"])
def norms(
    x,
    weight,
    y,
    eps,
    count,
    inner,
    length,
    steps,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write ROWS lines."""
    line, there, start = place(count, inner, steps[3], steps[4], ROWS)
    to = starts(line, inner, steps[0], steps[1])
    squares = tl.zeros((ROWS,), tl.float32)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        found = load(x, start, steps[5], first + column, mask, 0.0)
        squares += tl.sum(found * found, 1)
    scale = 1.0 / tl.sqrt_rn(squares / length + eps)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        if not WHOLE:
            found = load(x, start, steps[5], first + column, mask, 0.0)
        else:
            found = load(x, start, steps[5], column, mask, 0.0)
        made = found * scale[:, None] * factor(weight, first + column, length, WEIGHTED)
        store(y, to, steps[2], first + column, mask, made)


@triton.jit(do_not_specialize=["eps"])
def norms_backward(
    grad,
    x,
    weight,
    out,
    scales,
    eps,
    count,
    inner,
    length,
    steps,
    WEIGHTED: tl.constexpr,
    WANTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write the gradients of ROWS lines if WANTED, and one over the root of each."""
    line, there, start = place(count, inner, steps[3], steps[4], ROWS)
    own, to = starts(line, inner, steps[6], steps[7]), starts(line, inner, steps[0], steps[1])
    squares, products = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        g = load(grad, start, steps[5], first + column, mask, 0.0)
        v = load(x, own, steps[8], first + column, mask, 0.0)
        squares += tl.sum(v * v, 1)
        products += tl.sum(g * factor(weight, first + column, length, WEIGHTED) * v, 1)
    scale = 1.0 / tl.sqrt_rn(squares / length + eps)
    slope = products / length * scale * scale
    tl.store(scales + line, scale, there)
    if WANTED:
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            g = load(grad, start, steps[5], first + column, mask, 0.0)
            v = load(x, own, steps[8], first + column, mask, 0.0)
            h = g * factor(weight, first + column, length, WEIGHTED)
            store(out, to, steps[2], first + column, mask, scale[:, None] * (h - v * slope[:, None]))


@triton.jit
def columns_of(
    grad, x, scales, parts, count, inner, length, span, steps, BLOCK: tl.constexpr, TERMS: tl.constexpr
):
    """Add up the weight's gradient over some of the lines: program (columns, part)."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1).to(tl.int64) * span
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(first, tl.minimum(first + span, count), TERMS):
        line = begin + tl.arange(0, TERMS)
        there = line < tl.minimum(first + span, count)
        mask = there[:, None] & (column < length)[None, :]
        g = load(grad, starts(line, inner, steps[3], steps[4]), steps[5], column, mask, 0.0)
        v = load(x, starts(line, inner, steps[6], steps[7]), steps[8], column, mask, 0.0)
        scale = tl.load(scales + line, there, other=0.0)
        total += tl.sum(g * v * scale[:, None], 0)
    tl.store(parts + tl.program_id(1) * length + column, total, column < length)


@triton.jit
def fold(parts, out, rows, length, BLOCK: tl.constexpr, TERMS: tl.constexpr):
    """Add up the parts of some columns."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, TERMS).to(tl.int64)
    mask = (row < rows)[:, None] & (column < length)[None, :]
    found = tl.load(parts + row[:, None] * length + column[None, :], mask, other=0.0)
    tl.store(out + column, narrow(tl.sum(found, 0), out.dtype.element_ty), column < length)


BLOCK, TERMS, PARTS = 64, 32, 32


def _sizes(found: Lines) -> tuple[Any, ...]:
    return found.count, found.inner, found.length, tuple(n for step in found.steps for n in step)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, normalized_shape, weight, eps)``."""
    out, found, weighted = problem.outputs, Lines.rows(problem), problem["weight"] is not None
    run = lines.launch(norms, problem.device, found, WEIGHTED=weighted)
    rest = (float(problem["eps"]), *_sizes(found))

    def call(x: Tensor, _shape: Any, weight: Tensor | None, _eps: Any) -> Tensor:
        result: Tensor = out.empty()
        tensors = (x, weight if weighted else x, result)
        run(tensors, *tensors, *rest)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, Tensor | None]]:
    """Return the launches for one problem, ``call(grad, x, normalized_shape, weight, eps, mask)``."""
    (out, scaled), found, device = problem.outputs, Lines.rows(problem), problem.device
    weighted, sizes = problem["weight"] is not None, _sizes(found)
    run = lines.launch(norms_backward, device, found, WEIGHTED=weighted, WANTED=out is not None)
    span = tile.cdiv(found.count, PARTS)
    rows, blocks = tile.cdiv(found.count, span), tile.cdiv(found.length, BLOCK)
    add_up = Launch(columns_of, (blocks, rows), device, BLOCK=BLOCK, TERMS=TERMS)
    last = Launch(fold, (blocks,), device, BLOCK=BLOCK, TERMS=PARTS)
    work = TensorMeta.row_major((found.count,), torch.float32, device)
    parts = TensorMeta.row_major((rows, found.length), torch.float32, device)
    eps = float(problem["eps"])

    def call(
        grad: Tensor, x: Tensor, _shape: Any, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        result = None if out is None else out.empty()
        scales = work.empty()
        tensors = (grad, x, weight if weighted else x, x if result is None else result, scales)
        run(tensors, *tensors, eps, *sizes)
        if scaled is None:
            return result, None
        total, shares = scaled.empty(), parts.empty()
        add_up((grad, x, scales, shares), grad, x, scales, shares, *sizes[:3], span, sizes[3])
        last((shares, total), shares, total, rows, found.length)
        return result, total

    return call
