"""square_relu and its gradient: memory as it lies, a block a program."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.tile import INTERPRETED, cdiv
from torch import Tensor

from nxcore.plugin import Problem

BLOCK = 65536 if INTERPRETED else 2048


@triton.jit
def square_relu(grad, x, out, n, BACK: tl.constexpr, BLOCK: tl.constexpr):
    """Write one block."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = widen(tl.load(x + at, mask, other=0.0))
    value = tl.where(value < 0, 0.0, value)
    by = value
    if BACK:
        by = 2 * widen(tl.load(grad + at, mask, other=0.0))
    tl.store(out + at, narrow(value * by, out.dtype.element_ty), mask)


def _launch(problem: Problem, *, back: bool) -> Launch:
    grid = (cdiv(problem.outputs.numel(), BLOCK),)
    return Launch(square_relu, grid, problem.device, BACK=back, BLOCK=BLOCK)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x)``."""
    out, launch = problem.outputs, _launch(problem, back=False)
    count = out.numel()

    def call(x: Tensor) -> Tensor:
        result: Tensor = out.empty()
        launch((x, result), x, x, result, count)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(grad, x)``."""
    out, launch = problem.outputs, _launch(problem, back=True)
    count = out.numel()

    def call(grad: Tensor, x: Tensor) -> Tensor:
        result: Tensor = out.empty()
        launch((grad, x, result), grad, x, result, count)
        return result

    return call
