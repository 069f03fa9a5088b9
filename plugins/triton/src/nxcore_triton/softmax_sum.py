"""softmax_sum: every program computes all weights, then streams one block of each candidate.

The loads of a block don't depend on each other, so as many are in flight as there are candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta, alike, collapse
from nxcore_triton import tile
from nxcore_triton.candidates import candidate, factors
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.weights import each


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

    Returns
    -------
    callable
        ``call(xs, logits)``, ``xs`` a sequence of tensors or one stacked tensor.
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
