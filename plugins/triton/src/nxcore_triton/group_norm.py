"""group_norm: a program has whole groups of images, or parts of a longer one; a program adds up a channel."""

# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Lines, Problem, TensorMeta, factors_of
from nxcore_triton import lines
from nxcore_triton.launch import Launch
from nxcore_triton.lines import load, place, store
from nxcore_triton.norms import means_of
from nxcore_triton.rounding import narrow, widen


@triton.jit
def of_channels(
    values, line, column, mask, groups, channels, pixels, GIVEN: tl.constexpr, OTHER: tl.constexpr
):
    """Return a factor of the entries of lines; OTHER where it isn't GIVEN."""
    if GIVEN:
        at = (line % groups * channels)[:, None] + (column // pixels)[None, :]
        return widen(tl.load(values + at, mask, other=0.0))
    else:
        return tl.full((line.shape[0], column.shape[0]), OTHER, tl.float32)


@triton.jit(do_not_specialize=["eps"])
def group_norm(
    x,
    weight,
    bias,
    y,
    eps,
    count,
    length,
    groups,
    channels,
    pixels,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write ROWS groups."""
    line, there, start = place(count, 1, length, 0, ROWS)
    mean, squares = means_of(x, start, 1, there, length, ROWS, COLUMNS), tl.zeros((ROWS,), tl.float32)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        found = tl.where(mask, load(x, start, 1, first + column, mask, 0.0) - mean[:, None], 0.0)
        squares += tl.sum(found * found, 1)
    scale = 1.0 / tl.sqrt_rn(squares / length + eps)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        found = (load(x, start, 1, first + column, mask, 0.0) - mean[:, None]) * scale[:, None]
        w = of_channels(weight, line, first + column, mask, groups, channels, pixels, WEIGHTED, 1.0)
        b = of_channels(bias, line, first + column, mask, groups, channels, pixels, BIASED, 0.0)
        store(y, start, 1, first + column, mask, found * w + b)


@triton.jit(do_not_specialize=["eps"])
def group_norm_backward(
    grad,
    x,
    weight,
    out,
    moments,
    eps,
    count,
    length,
    groups,
    channels,
    pixels,
    WEIGHTED: tl.constexpr,
    WANTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write the gradients of ROWS groups if WANTED, the mean of each and one over its deviation."""
    line, there, start = place(count, 1, length, 0, ROWS)
    mean, total = means_of(x, start, 1, there, length, ROWS, COLUMNS), tl.zeros((ROWS,), tl.float32)
    squares, products = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    for first in range(0, length, COLUMNS):
        mask = there[:, None] & (first + column < length)[None, :]
        v = tl.where(mask, load(x, start, 1, first + column, mask, 0.0) - mean[:, None], 0.0)
        w = of_channels(weight, line, first + column, mask, groups, channels, pixels, WEIGHTED, 1.0)
        h = load(grad, start, 1, first + column, mask, 0.0) * w
        total += tl.sum(h, 1)
        squares += tl.sum(v * v, 1)
        products += tl.sum(h * v, 1)
    scale = 1.0 / tl.sqrt_rn(squares / length + eps)
    slope = products / length * scale * scale
    tl.store(moments + line, mean, there)
    tl.store(moments + count + line, scale, there)
    if WANTED:
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            v = load(x, start, 1, first + column, mask, 0.0) - mean[:, None]
            w = of_channels(weight, line, first + column, mask, groups, channels, pixels, WEIGHTED, 1.0)
            h = load(grad, start, 1, first + column, mask, 0.0) * w - (total / length)[:, None]
            store(out, start, 1, first + column, mask, scale[:, None] * (h - v * slope[:, None]))


@triton.jit
def channel(
    grad, x, moments, out, images, count, groups, channels, pixels, SCALED: tl.constexpr, BLOCK: tl.constexpr
):
    """Add up one channel of all images: the weight's gradient if SCALED, else the bias's."""
    own = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, images * pixels, BLOCK):
        j = first + tl.arange(0, BLOCK).to(tl.int64)
        mask = j < images * pixels
        at = (j // pixels * groups * channels + own) * pixels + j % pixels
        g = widen(tl.load(grad + at, mask, other=0.0))
        if SCALED:
            line = j // pixels * groups + own // channels
            v = widen(tl.load(x + at, mask, other=0.0)) - tl.load(moments + line, mask, other=0.0)
            g *= v * tl.load(moments + count + line, mask, other=0.0)
        total += g
    tl.store(out + own, narrow(tl.sum(total, 0), out.dtype.element_ty))


BLOCK = 1024


def _sizes(problem: Problem) -> tuple[Lines, tuple[int, ...]]:
    """Return the groups as lines; and their number, length and those of an image, and sizes of each."""
    x, groups = problem["x"], problem["num_groups"]
    channels, pixels = x.shape[1] // groups, math.prod(x.shape[2:])
    found = Lines(x.shape[0] * groups, 1, channels * pixels, ())
    return found, (found.count, found.length, groups, channels, pixels)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, num_groups, weight, bias, eps)``."""
    out, (found, sizes), factors = problem.outputs, _sizes(problem), factors_of(problem)
    given = {"WEIGHTED": "weight" in factors, "BIASED": "bias" in factors}
    run = lines.launch(group_norm, problem.device, found, **given)
    eps = float(problem["eps"])

    def call(x: Tensor, _groups: int, weight: Tensor | None, bias: Tensor | None, _eps: Any) -> Tensor:
        result: Tensor = out.empty()
        tensors = (x, x if weight is None else weight, x if bias is None else bias, result)
        run(tensors, *tensors, eps, *sizes)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem, ``call(grad, x, num_groups, weight, bias, eps, mask)``."""
    (out, *wanted), (found, sizes), device = problem.outputs, _sizes(problem), problem.device
    weighted = problem["weight"] is not None
    run = lines.launch(group_norm_backward, device, found, WEIGHTED=weighted, WANTED=out is not None)
    images, channels = problem["x"].shape[:2]
    add_up = [Launch(channel, (channels,), device, SCALED=scaled, BLOCK=BLOCK) for scaled in (True, False)]
    work = TensorMeta.row_major((2, found.count), torch.float32, device)
    eps, of_channel = float(problem["eps"]), (images, found.count, *sizes[2:])

    def call(
        grad: Tensor, x: Tensor, _groups: int, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        result, moments = None if out is None else out.empty(), work.empty()
        tensors = (grad, x, x if weight is None else weight, x if result is None else result, moments)
        run(tensors, *tensors, eps, *sizes)
        totals = [None if meta is None else meta.empty() for meta in wanted]
        for total, add in zip(totals, add_up, strict=True):
            if total is not None:
                given = (grad, x, moments, total)
                add(given, *given, *of_channel)
        return result, *totals

    return call
