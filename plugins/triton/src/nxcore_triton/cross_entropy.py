"""cross_entropy: a program has whole lines in registers, or reads parts of a longer one twice."""

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
from nxcore_triton.softmaxes import power, seen

BLOCK = 2048
"""Losses that the program which adds them up reads at once."""

COMPILED = tl.constexpr(not tile.INTERPRETED)


@triton.jit
def end_if(wrong):
    """End the program where an index is wrong, as torch's own kernels do."""
    if COMPILED:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $1, 0; @p trap; mov.b32 $0, $1; }",
            "=r,r",
            [wrong.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def classes_of(target, at, there, ignored, length):
    """Return the classes of lines, which of them are kept, and which there aren't: these end the program."""
    found = tl.load(target + at, there, other=0)
    kept = there & (found != ignored)
    wrong = kept & ((found < 0) | (found >= length))
    end_if(wrong)
    return found, kept & (wrong == 0), wrong


@triton.jit
def own(weights, found, kept, WEIGHTED: tl.constexpr):
    """Return the weights of lines' classes; 0 of a line that isn't kept."""
    if WEIGHTED:
        return widen(tl.load(weights + found, kept, other=0.0))
    else:
        return tl.where(kept, 1.0, 0.0)


@triton.jit
def factors(weights, column, length, WEIGHTED: tl.constexpr):
    """Return the weights of classes as a row."""
    if WEIGHTED:
        return widen(tl.load(weights + column, column < length, other=0.0))[None, :]
    else:
        return tl.where(column < length, 1.0, 0.0)[None, :]


@triton.jit
def read(x, start, step, length, there, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the largest entries of lines, and the sums of exponentials of distances from these."""
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        top, total = seen(load(x, start, step, first + column, mask, float("-inf")), top, total)
    return top, total


@triton.jit(do_not_specialize=["smoothing", "ignored"])
def cross_entropy(
    x,
    target,
    weights,
    losses,
    ignored,
    smoothing,
    count,
    inner,
    length,
    steps,
    WEIGHTED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write the losses of ROWS lines."""
    line, there, start = place(count, inner, steps[0], steps[1], ROWS)
    at, to = starts(line, inner, steps[3], steps[4]), starts(line, inner, steps[6], steps[7])
    found, kept, wrong = classes_of(target, at, there, ignored, length)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    if WHOLE:
        mask = there[:, None] & (column < length)[None, :]
        tile_of = load(x, start, steps[2], column, mask, float("-inf"))
        zeros = tl.zeros((ROWS,), tl.float32)
        top, total = seen(tile_of, tl.full((ROWS,), float("-inf"), tl.float32), zeros)
    else:
        top, total = read(x, start, steps[2], length, there, ROWS, COLUMNS)
    level = tl.log(total)
    below = widen(tl.load(x + start + found * steps[2], kept, other=0.0)) - top - level
    loss = tl.where(kept, -(1.0 - smoothing) * own(weights, found, kept, WEIGHTED) * below, 0.0)
    if SMOOTHED:
        lean = tl.zeros((ROWS,), tl.float32)
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            if not WHOLE:
                tile_of = load(x, start, steps[2], first + column, mask, float("-inf"))
            distance = tl.where(mask, tile_of - top[:, None] - level[:, None], 0.0)
            lean += tl.sum(factors(weights, first + column, length, WEIGHTED) * distance, 1)
        loss -= tl.where(kept, smoothing / length * lean, 0.0)
    loss = tl.where(wrong, float("nan"), loss)
    tl.store(losses + to, narrow(loss, losses.dtype.element_ty), there)


@triton.jit(do_not_specialize=["ignored"])
def total_of(
    losses,
    target,
    weights,
    out,
    ignored,
    count,
    inner,
    length,
    outer,
    within,
    WEIGHTED: tl.constexpr,
    SHARE: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the sum of the losses, or of the weights of their classes if SHARE, in one program."""
    total, weight = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(0, count, BLOCK):
        line = first + tl.arange(0, BLOCK).to(tl.int64)
        there = line < count
        if not SHARE:
            total += tl.load(losses + line, there, other=0.0)
        if MEAN:
            at = starts(line, inner, outer, within)
            found, kept, _ = classes_of(target, at, there, ignored, length)
            weight += own(weights, found, kept, WEIGHTED)
    if SHARE:
        made = tl.sum(weight, 0)
    elif MEAN:
        made = tl.sum(total, 0) / tl.sum(weight, 0)
    else:
        made = tl.sum(total, 0)
    tl.store(out, narrow(made, out.dtype.element_ty))


@triton.jit
def slopes(x, top, slope, each, lead, column, found, kept, weights, length, WEIGHTED: tl.constexpr):
    """Return the gradient of a tile."""
    made = power(x - top[:, None]) * slope[:, None]
    made -= each[:, None] * factors(weights, column, length, WEIGHTED)
    return made - tl.where(kept[:, None] & (column[None, :] == found[:, None]), lead[:, None], 0.0)


@triton.jit(do_not_specialize=["smoothing", "ignored"])
def cross_entropy_backward(
    x,
    grad,
    target,
    weights,
    share,
    out,
    ignored,
    smoothing,
    count,
    inner,
    length,
    steps,
    WEIGHTED: tl.constexpr,
    SMOOTHED: tl.constexpr,
    MEAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write the gradients of ROWS lines."""
    line, there, start = place(count, inner, steps[0], steps[1], ROWS)
    at, by = starts(line, inner, steps[3], steps[4]), starts(line, inner, steps[6], steps[7])
    to = starts(line, inner, steps[9], steps[10])
    found, kept, wrong = classes_of(target, at, there, ignored, length)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    factor = widen(tl.load(grad + by, there, other=0.0))
    if MEAN:
        factor = factor / tl.load(share)
    factor = tl.where(kept, factor, 0.0)
    factor = tl.where(wrong, float("nan"), factor)
    lead = tl.where(kept, (1.0 - smoothing) * own(weights, found, kept, WEIGHTED) * factor, factor)
    each, every = tl.zeros((ROWS,), tl.float32), 0.0
    if SMOOTHED:
        each = smoothing / length * factor
        for first in range(0, length, COLUMNS):
            every += tl.sum(factors(weights, first + column, length, WEIGHTED))
    if WHOLE:
        mask = there[:, None] & (column < length)[None, :]
        tile_of = load(x, start, steps[2], column, mask, float("-inf"))
        zeros = tl.zeros((ROWS,), tl.float32)
        top, total = seen(tile_of, tl.full((ROWS,), float("-inf"), tl.float32), zeros)
    else:
        top, total = read(x, start, steps[2], length, there, ROWS, COLUMNS)
    slope = (lead + each * every) / total
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        if not WHOLE:
            tile_of = load(x, start, steps[2], first + column, mask, float("-inf"))
        made = slopes(tile_of, top, slope, each, lead, first + column, found, kept, weights, length, WEIGHTED)
        store(out, to, steps[11], first + column, mask, made)


def _sizes(problem: Problem) -> tuple[Any, ...]:
    found = Lines.classes(problem)
    return found.count, found.inner, found.length, tuple(n for step in found.steps for n in step)


def _launch(kernel: Any, problem: Problem, **constants: Any) -> Launch:
    found, smoothed = Lines.classes(problem), problem["label_smoothing"] != 0
    weighted = problem["weight"] is not None
    return lines.launch(kernel, problem.device, found, WEIGHTED=weighted, SMOOTHED=smoothed, **constants)


def _adding(problem: Problem, *, share: bool) -> Callable[..., None]:
    """Return ``run(losses, target, weight, out)``: the sum of losses or, of a ``share``, of weights."""
    count, inner, length, steps = _sizes(problem)
    weighted, mean = problem["weight"] is not None, problem["reduction"] == "mean"
    add_up = Launch(total_of, (1,), problem.device, 8, WEIGHTED=weighted, SHARE=share, MEAN=mean, BLOCK=BLOCK)

    def run(losses: Tensor, target: Tensor, weight: Tensor, out: Tensor) -> None:
        tensors = (losses, target, weight, out)
        add_up(tensors, *tensors, problem["ignore_index"], count, inner, length, *steps[3:5])

    return run


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launches for one problem, ``call(input, target, weight, ...)``."""
    out, each = problem.outputs, problem["reduction"] == "none"
    run, total = _launch(cross_entropy, problem), None if each else _adding(problem, share=False)
    rest = (problem["ignore_index"], float(problem["label_smoothing"]), *_sizes(problem))
    work = TensorMeta.row_major(problem["target"].shape, torch.float32, problem.device)

    def call(x: Tensor, target: Tensor, weight: Tensor | None, *_: Any) -> Tensor:
        result: Tensor = out.empty()
        made, factor = result if each else work.empty(), x if weight is None else weight
        tensors = (x, target, factor, made)
        run(tensors, *tensors, *rest)
        if total is not None:
            total(made, target, factor, result)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor, None, None]]:
    """Return the launches for one problem, ``call(grad, input, target, weight, ...)``."""
    out, mean = problem.outputs[0], problem["reduction"] == "mean"
    run = _launch(cross_entropy_backward, problem, MEAN=mean)
    total = _adding(problem, share=True) if mean else None
    rest = (problem["ignore_index"], float(problem["label_smoothing"]), *_sizes(problem))
    one = TensorMeta((), (), torch.float32, problem.device)

    def call(
        grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor, None, None]:
        result: Tensor = out.empty()
        share, factor = one.empty() if mean else x, x if weight is None else weight
        if total is not None:
            total(x, target, factor, share)
        tensors = (x, grad, target, factor, share, result)
        run(tensors, *tensors, *rest)
        return result, None, None

    return call
