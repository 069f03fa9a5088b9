"""softmax_sum: every program computes all weights, then streams one block of each candidate.

The loads of a block don't depend on each other, so as many are in flight as there are candidates.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta, alike, collapse
from nxcore_triton import tile
from nxcore_triton.candidates import candidate, factors, gradient, wanted
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.weights import each, softmax_all


@triton.jit
def blend(
    xs,
    logits,
    out,
    n,
    x_step,
    logit_step,
    sizes,
    strides,
    COUNT: tl.constexpr,
    STACKED: tl.constexpr,
    RANK: tl.constexpr,
    WIDE: tl.constexpr,
    SOFTMAX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write one block of the blend; RANK is 0 where candidates lie in memory as the output does."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    if RANK == 0:
        place = at
    elif WIDE:
        place = offset(at, sizes, strides, RANK)
    else:
        place = offset(at.to(tl.int32), sizes, strides, RANK)
    weights = each(logits, logit_step, COUNT, SOFTMAX)
    total = weights[0] * widen(tl.load(xs[0] + place, mask, other=0.0))
    for i in tl.static_range(1, COUNT):
        x = xs[0] + tl.full([], i, tl.int64) * x_step if STACKED else xs[i]
        total += weights[i] * widen(tl.load(x + place, mask, other=0.0))
    tl.store(out + at, narrow(total, out.dtype.element_ty), mask)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    It is called as ``call(xs, logits)``, ``xs`` a sequence of tensors or one stacked tensor.
    """
    xs, (logits, softmax), out = problem["xs"], factors(problem), problem.outputs
    one, count, x_step = candidate(xs)
    n, logit_step = out.numel(), logits.strides[0]
    # In the memory order of the output, where do a candidate's elements lie?
    flat = alike(out, one)
    sizes, (_, strides) = ((1,), ((1,), (1,))) if flat else collapse(out.shape, out.strides, one.strides)
    block, warps = tile.flat(n, out.element_size())
    launch = Launch(
        blend,
        (tile.cdiv(n, block),),
        problem.device,
        warps,
        COUNT=count,
        STACKED=isinstance(xs, TensorMeta),
        RANK=0 if flat else len(sizes),
        WIDE=n >= 2**31,
        SOFTMAX=softmax,
        BLOCK=block,
    )

    def call(xs: Any, logits: Tensor) -> Tensor:
        given = (xs,) if isinstance(xs, Tensor) else tuple(xs)
        blended = out.empty()
        launch((*given, logits, blended), given, logits, blended, n, x_step, logit_step, sizes, strides)
        return blended

    return call


SHARES = 128  # read by one step of the second launch


@triton.jit
def spread(
    grad,
    xs,
    outs,
    logits,
    shares,
    n,
    x_step,
    out_step,
    logit_step,
    sizes,
    grad_strides,
    x_strides,
    COUNT: tl.constexpr,
    STACKED: tl.constexpr,
    WANTED: tl.constexpr,
    DOTS: tl.constexpr,
    RANK: tl.constexpr,
    WIDE: tl.constexpr,
    SOFTMAX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write w[i] * grad for every bit i of WANTED and, if DOTS, this program's shares of grad . xs[i]."""
    first = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    weights = each(logits, logit_step, COUNT, SOFTMAX)
    dots = ()
    for _ in tl.static_range(COUNT):
        dots = dots + (tl.zeros([BLOCK], tl.float32),)
    for chunk in range(first, tl.cdiv(n, BLOCK), programs):
        at = tl.arange(0, BLOCK).to(tl.int64) + chunk * BLOCK
        mask = at < n
        if RANK == 0:
            grad_at = at
            x_at = at
        elif WIDE:
            grad_at = offset(at, sizes, grad_strides, RANK)
            x_at = offset(at, sizes, x_strides, RANK)
        else:
            grad_at = offset(at.to(tl.int32), sizes, grad_strides, RANK)
            x_at = offset(at.to(tl.int32), sizes, x_strides, RANK)
        g = widen(tl.load(grad + grad_at, mask, other=0.0))
        if DOTS:  # all loads before any store, which the compiler can't move them past
            longer = ()
            for i in tl.static_range(COUNT):
                x = xs[0] + tl.full([], i, tl.int64) * x_step if STACKED else xs[i]
                longer = longer + (dots[i] + g * widen(tl.load(x + x_at, mask, other=0.0)),)
            dots = longer
        for i in tl.static_range(COUNT):
            if (WANTED >> i) & 1:
                out = outs[0] + tl.full([], i, tl.int64) * out_step if STACKED else outs[i]
                tl.store(out + at, narrow(weights[i] * g, out.dtype.element_ty), mask)
    if DOTS:
        for i in tl.static_range(COUNT):
            tl.store(shares + i * programs + tl.program_id(0), tl.sum(dots[i], 0))


@triton.jit
def finish(
    shares,
    logits,
    out,
    programs,
    logit_step,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    SOFTMAX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write w * (d - sum(w * d)), d the sums of the programs' shares; d where the weights are given."""
    lane = tl.arange(0, LANES)
    column = tl.arange(0, BLOCK)
    sums = tl.zeros([LANES, BLOCK], tl.float32)
    for start in range(0, programs, BLOCK):
        at = lane[:, None] * programs + (start + column)[None, :]
        mask = (lane < COUNT)[:, None] & (start + column < programs)[None, :]
        sums += tl.load(shares + at, mask, other=0.0)
    d = tl.sum(sums, 1)
    result = d
    if SOFTMAX:
        w = softmax_all(logits, logit_step, COUNT, LANES)
        result = w * (d - tl.sum(tl.where(lane < COUNT, w * d, 0.0), 0))
    tl.store(out + lane, narrow(result, out.dtype.element_ty), lane < COUNT)


def plan_backward(problem: Problem) -> Callable[..., tuple[Any, Any]]:
    """Return the launches for one problem.

    It is called as ``call(grad, xs, logits, output_mask)``, which returns ``(xs_grad, logits_grad)``.
    """
    grad, xs, (logits, softmax) = problem["grad"], problem["xs"], factors(problem)
    xs_grad, logits_grad = problem.outputs
    stacked = isinstance(xs, TensorMeta)
    one, count, x_step = candidate(xs)
    out, out_step = gradient(problem)
    bits, dotted = wanted(problem)
    n, logit_step = grad.numel(), logits.strides[0]
    flat = alike(out, grad, one) if dotted else alike(out, grad)
    sizes, (_, grad_strides, x_strides) = (
        ((1,), ((), (1,), (1,))) if flat else collapse(grad.shape, out.strides, grad.strides, one.strides)
    )
    block, warps, programs = tile.dots(n, count, max(grad.element_size(), one.element_size()))
    shares = TensorMeta((count, programs), (programs, 1), torch.float32, problem.device)
    pass_over = Launch(
        spread,
        (programs,),
        problem.device,
        warps,
        COUNT=count,
        STACKED=stacked,
        WANTED=bits,
        DOTS=dotted,
        RANK=0 if flat else len(sizes),
        WIDE=n >= 2**31,
        SOFTMAX=softmax,
        BLOCK=block,
    )
    lanes = tile.power_of_two(count)
    conclude = Launch(finish, (1,), problem.device, COUNT=count, LANES=lanes, SOFTMAX=softmax, BLOCK=SHARES)

    def call(grad: Tensor, xs: Any, logits: Tensor, output_mask: Any) -> tuple[Any, Any]:
        given = (xs,) if stacked else tuple(xs)
        if stacked:
            result = None if xs_grad is None else xs_grad.empty()
            outs = (grad if result is None else result,)
        else:
            result = tuple(None if m is None else m.empty() for m in xs_grad)
            outs = tuple(grad if r is None else r for r in result)  # a pointer that nothing is written to
        work = shares.empty() if dotted else grad
        pass_over(
            (grad, logits, work, *given, *outs),
            grad,
            given,
            outs,
            logits,
            work,
            n,
            x_step,
            out_step,
            logit_step,
            sizes,
            grad_strides,
            x_strides,
        )
        if not dotted:
            return result, None
        last = logits_grad.empty()
        conclude((work, logits, last), work, logits, last, programs, logit_step)
        return result, last

    return call
