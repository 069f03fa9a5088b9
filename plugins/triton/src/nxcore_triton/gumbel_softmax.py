"""gumbel_softmax: whole rows, their softmax or the first of their largest entries."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from nxcore_triton import rows
from nxcore_triton.rows import load, perturbed, place, softmax, store


@triton.jit(do_not_specialize=["tau"])
def gumbel_softmax(
    logits,
    noise,
    tau,
    out,
    count,
    length,
    steps,
    HARD: tl.constexpr,
    POINTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the weights of ROWS rows."""
    row, column, mask = place(count, length, ROWS, COLUMNS)
    x = load(logits, steps[0], steps[1], row, column, mask, float("-inf"))
    x, _ = perturbed(x, load(noise, steps[2], steps[3], row, column, mask, 1.0), mask, tau, POINTED)
    p, d, _ = softmax(x)
    if HARD:
        first = tl.min(tl.where((p > 0) & (d == 0), column[None, :], COLUMNS), 1)
        p = tl.where(p == p, tl.where(column[None, :] == first[:, None], 1.0, 0.0), p)
    store(out, steps[4], steps[5], row, column, mask, p)


@triton.jit(do_not_specialize=["tau"])
def gumbel_softmax_backward(
    grad,
    logits,
    noise,
    tau,
    out,
    count,
    length,
    steps,
    POINTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the gradients of ROWS rows."""
    row, column, mask = place(count, length, ROWS, COLUMNS)
    g = load(grad, steps[0], steps[1], row, column, mask, 0.0)
    x = load(logits, steps[2], steps[3], row, column, mask, float("-inf"))
    x, heat = perturbed(x, load(noise, steps[4], steps[5], row, column, mask, 1.0), mask, tau, POINTED)
    p, _, _ = softmax(x)
    mean = tl.sum(p * g, 1)
    store(out, steps[6], steps[7], row, column, mask, tl.div_rn(p * (g - mean[:, None]), heat))


plan = rows.planner(gumbel_softmax)
plan_backward = rows.planner(gumbel_softmax_backward)
