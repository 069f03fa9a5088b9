"""batch_norm: one launch for the statistics of each slice of a channel, one that joins them and normalises.

A slice's deviations are from the mean of a block of it, and blocks are put together by Chan's formula.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_triton.channel import Channels
from nxcore_triton.index import offset
from nxcore_triton.launch import ALIGNED, Launch
from nxcore_triton.rounding import narrow, widen


@triton.jit
def moments(x, means, squares, terms, span, x_step, sizes, strides, RANK: tl.constexpr, BLOCK: tl.constexpr):
    """Write the mean and the squared deviations of one slice of a channel: program (slice, channel)."""
    channel = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * span
    base = x + channel * x_step
    found, mean, square = 0.0, 0.0, 0.0
    for start in range(first, tl.minimum(first + span, terms), BLOCK):
        term = start + tl.arange(0, BLOCK)
        mask = term < terms
        values = widen(tl.load(base + offset(term, sizes, strides, RANK), mask, other=0.0))
        count = tl.minimum(terms - start, BLOCK).to(tl.float32)
        own = tl.sum(values, 0) / count
        off = tl.where(mask, values - own, 0.0)
        total = found + count
        # No difference of means goes into the mean: an infinite one stays infinite.
        both = (found * mean + count * own) / total
        square += (
            tl.sum(off * off, 0) + found * (mean - both) * (mean - both) + count * (own - both) * (own - both)
        )
        found, mean = total, both
    place = channel * tl.num_programs(0) + tl.program_id(0)
    tl.store(means + place, mean)
    tl.store(squares + place, square)


@triton.jit(do_not_specialize=["eps"])
def normalise(
    x,
    weight,
    bias,
    y,
    mean,
    var,
    means,
    squares,
    eps,
    terms,
    span,
    splits,
    x_step,
    y_step,
    sizes,
    x_strides,
    y_strides,
    AFFINE: tl.constexpr,
    RANK: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Normalise one slice of a channel; the first one's program writes the statistics."""
    channel = tl.program_id(1).to(tl.int64)
    split = tl.arange(0, SPLITS)
    there = split < splits
    shares = tl.load(means + channel * splits + split, there, other=0.0)
    counts = tl.where(there, tl.minimum(terms - split * span, span), 0).to(tl.float32)
    count = terms.to(tl.float32)
    centre = tl.sum(shares * counts, 0) / count
    off = tl.where(there, shares - centre, 0.0)
    within = tl.load(squares + channel * splits + split, there, other=0.0)
    square = tl.sum(within + counts * off * off, 0)
    if tl.program_id(0) == 0:
        tl.store(mean + channel, centre)
        tl.store(var + channel, square / (count - 1.0))
    scale, shift = 1.0 / tl.sqrt_rn(square / count + eps), 0.0
    if AFFINE:
        scale *= widen(tl.load(weight + channel))
        shift = widen(tl.load(bias + channel))
    first = tl.program_id(0) * span
    for start in range(first, tl.minimum(first + span, terms), BLOCK):
        term = start + tl.arange(0, BLOCK)
        mask = term < terms
        values = widen(tl.load(x + channel * x_step + offset(term, sizes, x_strides, RANK), mask, other=0.0))
        at = channel * y_step + offset(term, sizes, y_strides, RANK)
        tl.store(y + at, narrow((values - centre) * scale + shift, y.dtype.element_ty), mask)


def two_each(grid: tuple[int, int], device: torch.device) -> TensorMeta:
    """Return the description of two float32 numbers a program, which are two aligned tensors.

    Triton compiles another version for a pointer that isn't aligned, which no process compiled before.
    """
    numbers = ALIGNED // torch.float32.itemsize
    apart = -(-grid[0] * grid[1] // numbers) * numbers
    return TensorMeta((2, *grid[::-1]), (apart, grid[0], 1), torch.float32, device)


def plan(problem: Problem) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the launches for one problem.

    It is called as ``call(x, weight, bias, eps)``, which returns ``(y, mean, var)``.
    """
    out, statistic, _ = problem.outputs
    found = Channels.of(problem["x"], out)
    grid, device = (found.splits, found.channels), problem.device
    constants = {"RANK": found.rank, "BLOCK": found.block}
    whole = triton.next_power_of_2(found.splits)
    affine = problem["weight"] is not None
    first = Launch(moments, grid, device, **constants)
    second = Launch(normalise, grid, device, AFFINE=affine, SPLITS=whole, **constants)
    work = two_each(grid, device)
    x_step, y_step = found.between
    x_strides, y_strides = found.strides

    def call(x: Tensor, weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, var = out.empty(), statistic.empty(), statistic.empty()
        means, squares = work.empty().unbind()
        first((x, means, squares), x, means, squares, found.count, found.span, x_step, found.sizes, x_strides)
        scale, shift = (weight, bias) if affine else (mean, mean)  # which then aren't read
        tensors = (x, scale, shift, y, mean, var, means, squares)
        sizes = (found.count, found.span, found.splits, x_step, y_step, found.sizes, x_strides, y_strides)
        second(tensors, *tensors, eps, *sizes)
        return y, mean, var

    return call


@triton.jit
def add_up(
    x,
    grad,
    mean,
    sums,
    products,
    terms,
    span,
    x_step,
    grad_step,
    sizes,
    x_strides,
    grad_strides,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the sums of grad and of grad * (x - mean) of one slice of a channel: program (slice, channel)."""
    channel = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * span
    centre = tl.load(mean + channel)
    total = tl.zeros([BLOCK], tl.float32)
    product = tl.zeros([BLOCK], tl.float32)
    for start in range(first, tl.minimum(first + span, terms), BLOCK):
        term = start + tl.arange(0, BLOCK)
        mask = term < terms
        values = widen(tl.load(x + channel * x_step + offset(term, sizes, x_strides, RANK), mask, other=0.0))
        at = channel * grad_step + offset(term, sizes, grad_strides, RANK)
        grads = widen(tl.load(grad + at, mask, other=0.0))
        total += grads
        product += tl.where(mask, grads * (values - centre), 0.0)
    place = channel * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + place, tl.sum(total, 0))
    tl.store(products + place, tl.sum(product, 0))


@triton.jit(do_not_specialize=["eps"])
def spread(
    x,
    grad,
    mean,
    var,
    weight,
    x_grad,
    weight_grad,
    bias_grad,
    sums,
    products,
    eps,
    terms,
    span,
    splits,
    x_step,
    grad_step,
    out_step,
    sizes,
    x_strides,
    grad_strides,
    out_strides,
    AFFINE: tl.constexpr,
    TO_X: tl.constexpr,
    TO_WEIGHT: tl.constexpr,
    TO_BIAS: tl.constexpr,
    RANK: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the gradient of one slice of a channel; the first one's program writes those of the factors."""
    channel = tl.program_id(1).to(tl.int64)
    split = tl.arange(0, SPLITS)
    total = tl.sum(tl.load(sums + channel * splits + split, split < splits, other=0.0), 0)
    product = tl.sum(tl.load(products + channel * splits + split, split < splits, other=0.0), 0)
    count = terms.to(tl.float32)
    centre = tl.load(mean + channel)
    inverse = 1.0 / tl.sqrt_rn(tl.load(var + channel) * ((count - 1.0) / count) + eps)
    if tl.program_id(0) == 0:
        if TO_WEIGHT:
            tl.store(weight_grad + channel, narrow(product * inverse, weight_grad.dtype.element_ty))
        if TO_BIAS:
            tl.store(bias_grad + channel, narrow(total, bias_grad.dtype.element_ty))
    if TO_X:
        scale = inverse
        if AFFINE:
            scale *= widen(tl.load(weight + channel))
        level = total / count
        slope = product / count * inverse * inverse
        first = tl.program_id(0) * span
        for start in range(first, tl.minimum(first + span, terms), BLOCK):
            term = start + tl.arange(0, BLOCK)
            mask = term < terms
            x_at = channel * x_step + offset(term, sizes, x_strides, RANK)
            grad_at = channel * grad_step + offset(term, sizes, grad_strides, RANK)
            values = widen(tl.load(x + x_at, mask, other=0.0))
            grads = widen(tl.load(grad + grad_at, mask, other=0.0))
            found = scale * (grads - level - (values - centre) * slope)
            at = channel * out_step + offset(term, sizes, out_strides, RANK)
            tl.store(x_grad + at, narrow(found, x_grad.dtype.element_ty), mask)


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem.

    It is called as ``call(grad, x, mean, var, weight, eps, output_mask)``, which returns ``(x_grad,
    weight_grad, bias_grad)``.
    """
    outs, x_meta = problem.outputs, problem["x"]
    found = Channels.of(x_meta, problem["grad"], outs[0] or x_meta)
    grid, device = (found.splits, found.channels), problem.device
    constants = {"RANK": found.rank, "BLOCK": found.block}
    first = Launch(add_up, grid, device, **constants)
    second = Launch(
        spread,
        grid if outs[0] else (1, found.channels),
        device,
        AFFINE=problem["weight"] is not None,
        TO_X=outs[0] is not None,
        TO_WEIGHT=outs[1] is not None,
        TO_BIAS=outs[2] is not None,
        SPLITS=triton.next_power_of_2(found.splits),
        **constants,
    )
    work = two_each(grid, device)
    walk = (*found.between[:2], found.sizes, *found.strides[:2])
    whole = (*found.between, found.sizes, *found.strides)

    def call(
        grad: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, eps: float, *_: Any
    ) -> tuple[Tensor | None, ...]:
        results = tuple(None if out is None else out.empty() for out in outs)
        sums, products = work.empty().unbind()
        tensors: tuple[Tensor, ...] = (x, grad, mean, sums, products)
        first(tensors, *tensors, found.count, found.span, *walk)
        # What is missing isn't read, nor written.
        given = (mean if t is None else t for t in (weight, *results))
        tensors = (x, grad, mean, var, *given, sums, products)
        second(tensors, *tensors, eps, found.count, found.span, found.splits, *whole)
        return results

    return call
