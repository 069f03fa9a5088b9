"""rms_norm, layer_norm: a program has whole lines, or parts of a longer one; the factors' by columns."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Lines, Problem, TensorMeta, factors_of
from nxcore_triton import lines, tile
from nxcore_triton.launch import Launch
from nxcore_triton.lines import load, place, starts, store
from nxcore_triton.rounding import narrow, widen


@triton.jit
def factor(values, column, length, GIVEN: tl.constexpr, OTHER: tl.constexpr):
    """Return a factor of some columns as a row; OTHER where it isn't GIVEN."""
    if GIVEN:
        return widen(tl.load(values + column, column < length, other=0.0))[None, :]
    else:
        return tl.full((1, column.shape[0]), OTHER, tl.float32)


@triton.jit
def means_of(x, start, entry, there, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the means of lines."""
    total = tl.zeros((ROWS,), tl.float32)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        total += tl.sum(load(x, start, entry, first + column, mask, 0.0), 1)
    return total / length


@triton.jit(do_not_specialize=["eps"])
def norms(
    x,
    weight,
    bias,
    y,
    eps,
    count,
    inner,
    length,
    steps,
    CENTRED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write ROWS lines, which are in registers if they are WHOLE."""
    line, there, start = place(count, inner, steps[3], steps[4], ROWS)
    to = starts(line, inner, steps[0], steps[1])
    column = tl.arange(0, COLUMNS).to(tl.int64)
    if WHOLE:
        mask = there[:, None] & (column < length)[None, :]
        found = load(x, start, steps[5], column, mask, 0.0)
        if CENTRED:
            found = tl.where(mask, found - (tl.sum(found, 1) / length)[:, None], 0.0)
        scale = 1.0 / tl.sqrt_rn(tl.sum(found * found, 1) / length + eps)
        made = found * scale[:, None] * factor(weight, column, length, WEIGHTED, 1.0)
        if BIASED:
            made += factor(bias, column, length, BIASED, 0.0)
        store(y, to, steps[2], column, mask, made)
    else:
        squares = tl.zeros((ROWS,), tl.float32)
        if CENTRED:
            mean = means_of(x, start, steps[5], there, length, ROWS, COLUMNS)
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            found = load(x, start, steps[5], first + column, mask, 0.0)
            if CENTRED:
                found = tl.where(mask, found - mean[:, None], 0.0)
            squares += tl.sum(found * found, 1)
        scale = 1.0 / tl.sqrt_rn(squares / length + eps)
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            found = load(x, start, steps[5], first + column, mask, 0.0)
            if CENTRED:
                found -= mean[:, None]
            made = found * scale[:, None] * factor(weight, first + column, length, WEIGHTED, 1.0)
            if BIASED:
                made += factor(bias, first + column, length, BIASED, 0.0)
            store(y, to, steps[2], first + column, mask, made)


@triton.jit(do_not_specialize=["eps"])
def whole_backward(
    grad,
    x,
    weight,
    out,
    of_weight,
    of_bias,
    eps,
    count,
    inner,
    length,
    span,
    steps,
    CENTRED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WANTED: tl.constexpr,
    SCALED: tl.constexpr,
    ADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the gradients of some lines if WANTED, ROWS at a time, and add up the factors' over them.

    These are the weight's if SCALED, and the bias's if ADDED. Each entry is read once.
    """
    column = tl.arange(0, COLUMNS).to(tl.int64)
    w = factor(weight, column, length, WEIGHTED, 1.0)
    scaled = tl.zeros((ROWS, COLUMNS), tl.float32)
    added = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = tl.program_id(0).to(tl.int64) * span
    last = tl.minimum(first + span, count)
    for begin in range(first, last, ROWS):
        line = begin + tl.arange(0, ROWS)
        mask = (line < last)[:, None] & (column < length)[None, :]
        g = load(grad, starts(line, inner, steps[3], steps[4]), steps[5], column, mask, 0.0)
        v = load(x, starts(line, inner, steps[6], steps[7]), steps[8], column, mask, 0.0)
        if CENTRED:
            v = tl.where(mask, v - (tl.sum(v, 1) / length)[:, None], 0.0)
        scale = 1.0 / tl.sqrt_rn(tl.sum(v * v, 1) / length + eps)
        v *= scale[:, None]
        if SCALED:
            scaled += g * v
        if ADDED:
            added += g
        if WANTED:
            h = g * w
            slope = tl.sum(h * v, 1) / length
            if CENTRED:
                h -= (tl.sum(h, 1) / length)[:, None]
            to = starts(line, inner, steps[0], steps[1])
            store(out, to, steps[2], column, mask, scale[:, None] * (h - v * slope[:, None]))
    there = tl.program_id(0) * length + column
    if SCALED:
        tl.store(of_weight + there, tl.sum(scaled, 0), column < length)
    if ADDED:
        tl.store(of_bias + there, tl.sum(added, 0), column < length)


@triton.jit(do_not_specialize=["eps"])
def norms_backward(
    grad,
    x,
    weight,
    out,
    means,
    scales,
    eps,
    count,
    inner,
    length,
    steps,
    CENTRED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WANTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write the gradients of ROWS lines if WANTED, the mean of each and one over its root."""
    line, there, start = place(count, inner, steps[3], steps[4], ROWS)
    own, to = starts(line, inner, steps[6], steps[7]), starts(line, inner, steps[0], steps[1])
    squares, products = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    if CENTRED:
        mean, total = means_of(x, own, steps[8], there, length, ROWS, COLUMNS), tl.zeros((ROWS,), tl.float32)
        tl.store(means + line, mean, there)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        g = load(grad, start, steps[5], first + column, mask, 0.0)
        v = load(x, own, steps[8], first + column, mask, 0.0)
        h = g * factor(weight, first + column, length, WEIGHTED, 1.0)
        if CENTRED:
            v = tl.where(mask, v - mean[:, None], 0.0)
            total += tl.sum(h, 1)
        squares += tl.sum(v * v, 1)
        products += tl.sum(h * v, 1)
    scale = 1.0 / tl.sqrt_rn(squares / length + eps)
    slope = products / length * scale * scale
    tl.store(scales + line, scale, there)
    if WANTED:
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            g = load(grad, start, steps[5], first + column, mask, 0.0)
            v = load(x, own, steps[8], first + column, mask, 0.0)
            h = g * factor(weight, first + column, length, WEIGHTED, 1.0)
            if CENTRED:
                v -= mean[:, None]
                h -= (total / length)[:, None]
            store(out, to, steps[2], first + column, mask, scale[:, None] * (h - v * slope[:, None]))


@triton.jit
def columns_of(
    grad,
    x,
    means,
    scales,
    parts,
    count,
    inner,
    length,
    span,
    steps,
    CENTRED: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Add up a factor's gradient over some of the lines, the weight's if SCALED: program (columns, part)."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1).to(tl.int64) * span
    total = tl.zeros((BLOCK,), tl.float32)
    for begin in range(first, tl.minimum(first + span, count), TERMS):
        line = begin + tl.arange(0, TERMS)
        there = line < tl.minimum(first + span, count)
        mask = there[:, None] & (column < length)[None, :]
        g = load(grad, starts(line, inner, steps[3], steps[4]), steps[5], column, mask, 0.0)
        if SCALED:
            v = load(x, starts(line, inner, steps[6], steps[7]), steps[8], column, mask, 0.0)
            if CENTRED:
                v -= tl.load(means + line, there, other=0.0)[:, None]
            g *= v * tl.load(scales + line, there, other=0.0)[:, None]
        total += tl.sum(g, 0)
    tl.store(parts + tl.program_id(1) * length + column, total, column < length)


@triton.jit
def fold(parts, out, rows, length, BLOCK: tl.constexpr, TERMS: tl.constexpr):
    """Add up the parts of some columns."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((TERMS, BLOCK), tl.float32)
    for first in range(0, rows, TERMS):
        row = first + tl.arange(0, TERMS).to(tl.int64)
        mask = (row < rows)[:, None] & (column < length)[None, :]
        total += tl.load(parts + row[:, None] * length + column[None, :], mask, other=0.0)
    tl.store(out + column, narrow(tl.sum(total, 0), out.dtype.element_ty), column < length)


BLOCK, TERMS, PARTS = 64, 32, 32

REGISTERS = 16384
"""Entries of the longest line whose gradient is computed in registers."""

PROGRAMS = 16 if tile.INTERPRETED else tile.FILL
"""Programs that leave a part of the factors' gradients each; half as many of lines that fill one."""


def _sizes(found: Lines) -> tuple[Any, ...]:
    return found.count, found.inner, found.length, tuple(n for step in found.steps for n in step)


def _centred(problem: Problem) -> bool:
    return problem.op.startswith("layer")


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, normalized_shape, weight, [bias,] eps)``."""
    out, found, factors = problem.outputs, Lines.rows(problem), factors_of(problem)
    given = {"WEIGHTED": "weight" in factors, "BIASED": "bias" in factors}
    run = lines.launch(norms, problem.device, found, CENTRED=_centred(problem), **given)
    rest = (float(problem["eps"]), *_sizes(found))

    def call(x: Tensor, _shape: Any, weight: Tensor | None, *more: Any) -> Tensor:
        result: Tensor = out.empty()
        bias = more[0] if given["BIASED"] else x
        tensors = (x, x if weight is None else weight, bias, result)
        run(tensors, *tensors, *rest)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem, ``call(grad, x, normalized_shape, weight, [bias,] eps, mask)``."""
    found = Lines.rows(problem)
    return (_in_registers if found.length <= REGISTERS else _in_parts)(problem, found)


def _in_registers(problem: Problem, found: Lines) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for lines that a program has whole."""
    (out, *wanted), device = problem.outputs, problem.device
    of_weight, of_bias = (*wanted, None)[:2]
    rows, columns = lines.tile_of(found)
    tiles = tile.cdiv(found.count, rows)
    most = PROGRAMS if columns <= lines.SHORT else PROGRAMS // 2
    span = rows * (tile.cdiv(tiles, most) if of_weight or of_bias else 1)
    programs = tile.cdiv(found.count, span)
    warps = max(min(rows * columns // 512, 16), 1)
    run = Launch(
        whole_backward,
        (programs,),
        device,
        warps,
        CENTRED=_centred(problem),
        WEIGHTED=problem["weight"] is not None,
        WANTED=out is not None,
        SCALED=of_weight is not None,
        ADDED=of_bias is not None,
        ROWS=rows,
        COLUMNS=columns,
    )
    last = Launch(fold, (tile.cdiv(found.length, BLOCK),), device, BLOCK=BLOCK, TERMS=PARTS)
    parts = TensorMeta.row_major((programs, found.length), torch.float32, device)
    eps, (*sizes, steps) = float(problem["eps"]), _sizes(found)

    def call(
        grad: Tensor, x: Tensor, _shape: Any, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        result = None if out is None else out.empty()
        shares = [None if meta is None else parts.empty() for meta in (of_weight, of_bias)]
        tensors = (grad, x, *(x if t is None else t for t in (weight, result, *shares)))
        run(tensors, *tensors, eps, *sizes, span, steps)
        results = [result]
        for meta, share in zip(wanted, shares, strict=False):
            total = None if meta is None else meta.empty()
            if total is not None:
                last((share, total), share, total, programs, found.length)
            results.append(total)
        return tuple(results)

    return call


def _in_parts(problem: Problem, found: Lines) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for longer lines: of their gradients, then of the factors' by columns."""
    (out, *wanted), device = problem.outputs, problem.device
    sizes, centred = _sizes(found), _centred(problem)
    weighted = problem["weight"] is not None
    run = lines.launch(
        norms_backward, device, found, CENTRED=centred, WEIGHTED=weighted, WANTED=out is not None
    )
    span = tile.cdiv(found.count, PARTS)
    rows, blocks = tile.cdiv(found.count, span), tile.cdiv(found.length, BLOCK)
    add_up = [
        Launch(columns_of, (blocks, rows), device, CENTRED=centred, SCALED=scaled, BLOCK=BLOCK, TERMS=TERMS)
        for scaled in (True, False)
    ]
    last = Launch(fold, (blocks,), device, BLOCK=BLOCK, TERMS=PARTS)
    work = TensorMeta.row_major((found.count,), torch.float32, device)
    parts = TensorMeta.row_major((rows, found.length), torch.float32, device)
    eps = float(problem["eps"])

    def call(
        grad: Tensor, x: Tensor, _shape: Any, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        result = None if out is None else out.empty()
        scales = work.empty()
        means = work.empty() if centred else scales
        tensors = (grad, x, x if weight is None else weight, x if result is None else result, means, scales)
        run(tensors, *tensors, eps, *sizes)
        results = [result]
        for meta, add in zip(wanted, add_up, strict=False):
            total = None if meta is None else meta.empty()
            if total is not None:
                shares = parts.empty()
                given = (grad, x, means, scales, shares)
                add(given, *given, *sizes[:3], span, sizes[3])
                last((shares, total), shares, total, rows, found.length)
            results.append(total)
        return tuple(results)

    return call
