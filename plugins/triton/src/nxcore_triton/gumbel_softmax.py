"""gumbel_softmax: whole rows, their softmax or the first of their largest entries."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_triton import rows
from nxcore_triton.rows import load, perturbed, place, softmax, store, temperature


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


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(logits, tau, hard, noise)``."""
    out, pointed = problem.outputs, isinstance(problem["tau"], TensorMeta)
    launch, rest = rows.launch(problem, gumbel_softmax, HARD=problem["hard"], POINTED=pointed)

    def call(logits: Tensor, tau: Any, hard: bool, noise: Tensor) -> Tensor:
        result = out.empty()
        tensors = (logits, noise, tau, result) if pointed else (logits, noise, result)
        launch(tensors, logits, noise, temperature(tau), result, *rest)
        return result

    return call


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


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launch for one problem, ``call(grad, logits, tau, noise, output_mask)``."""
    (out, *others), pointed = problem.outputs, isinstance(problem["tau"], TensorMeta)
    launch, rest = rows.launch(problem, gumbel_softmax_backward, POINTED=pointed)

    def call(grad: Tensor, logits: Tensor, tau: Any, noise: Tensor, mask: Any) -> tuple[Tensor | None, ...]:
        result = out.empty()
        tensors = (grad, logits, noise, tau, result) if pointed else (grad, logits, noise, result)
        launch(tensors, grad, logits, noise, temperature(tau), result, *rest)
        return result, *others

    return call
