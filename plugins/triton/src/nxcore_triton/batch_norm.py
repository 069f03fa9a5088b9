"""batch_norm: one launch for the statistics of each slice of a channel, one that joins them and normalises.

A slice's deviations are from the mean of a block of it, and blocks are put together by Chan's formula.
"""

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
from nxcore_triton.launch import Launch
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


def plan(problem: Problem) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(x, weight, bias, eps)``, which returns ``(y, mean, var)``.
    """
    out, statistic, _ = problem.outputs
    found = Channels.of(problem["x"], out)
    grid, device = (found.splits, found.channels), problem.device
    constants = {"RANK": found.rank, "BLOCK": found.block}
    whole = triton.next_power_of_2(found.splits)
    affine = problem["weight"] is not None
    first = Launch(moments, grid, device, **constants)
    second = Launch(normalise, grid, device, AFFINE=affine, SPLITS=whole, **constants)
    work = TensorMeta((2, *grid[::-1]), (grid[0] * grid[1], grid[0], 1), torch.float32, device)
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
