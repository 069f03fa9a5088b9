"""Short rows, a softmax along each: a program has a tile of whole rows.

Shared by the operators on rows: the tile, and the softmax.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Rows, TensorMeta
from nxcore_triton import tile
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.weights import exp


@triton.jit
def place(count, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the rows and the columns of this program's tile, and which of them are there."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    return row, column, (row < count)[:, None] & (column < length)[None, :]


@triton.jit
def load(x, step, entry, row, column, mask, other: tl.constexpr):
    """Return a tile in float32; ``other`` where there is nothing."""
    at = row[:, None] * step + column[None, :] * entry
    return widen(tl.load(x + at, mask, other=other))


@triton.jit
def store(out, step, entry, row, column, mask, values):
    """Round a tile to ``out``."""
    at = row[:, None] * step + column[None, :] * entry
    tl.store(out + at, narrow(values, out.dtype.element_ty), mask)


@triton.jit
def softmax(x):
    """Return the softmax of each row, how far below its largest each entry is, and the exponentials' sums.

    A distance is 0 where the weight is. A NaN makes its row NaN.
    """
    below = x - tl.max(x, 1)[:, None]
    power = exp(below)
    total = tl.sum(power, 1)
    p = tl.div_rn(power, tl.zeros_like(power) + total[:, None])
    return p, tl.where(p == 0, 0.0, -below), total


@triton.jit
def perturbed(x, noise, mask, tau, POINTED: tl.constexpr):
    """Return noisy logits, and the temperature in float32: a number, or one in memory if POINTED."""
    heat = tl.zeros_like(x)
    if POINTED:
        heat += widen(tl.load(tau))
    else:
        heat += tau
    return tl.where(mask, tl.div_rn(x - tl.log(noise), heat), float("-inf")), heat


def planner(kernel: Any) -> Callable[[Problem], Callable[..., Any]]:
    """Return the planner of an operator on rows, or of its gradient.

    ``kernel`` takes the tensors in their order; a temperature, where there is one, as a number or in memory;
    then the result.
    """

    def plan(problem: Problem) -> Callable[..., Any]:
        outputs, names = problem.outputs, [p.name for p in problem.spec.params]
        alone = isinstance(outputs, TensorMeta)
        out, *others = (outputs,) if alone else outputs
        if "tau" not in names:
            run, rest = launch(problem, kernel)

            def call(*tensors: Tensor) -> Tensor:
                result = out.empty()
                run((*tensors, result), *tensors, result, *rest)
                return result

            return call
        constants = {"HARD": problem["hard"]} if "hard" in names else {}
        pointed = isinstance(problem["tau"], TensorMeta)
        run, rest = launch(problem, kernel, **constants, POINTED=pointed)
        at, noise = names.index("tau"), names.index("noise")

        def call_tempered(*args: Any) -> Any:
            result = out.empty()
            tensors, tau = (*args[:at], args[noise]), args[at]
            if pointed:
                run((*tensors, tau, result), *tensors, tau, result, *rest)
            else:
                run((*tensors, result), *tensors, float(tau), result, *rest)
            return result if alone else (result, *others)

        return call_tempered

    return plan


def launch(problem: Problem, kernel: Any, **constants: Any) -> tuple[Launch, tuple[Any, ...]]:
    """Return the launch of a kernel on rows, and what it takes after its tensors: sizes, and all steps."""
    found = Rows.of(problem)
    assert found is not None  # noqa: S101  accepts looked
    columns = max(tile.power_of_two(found.length), 2)
    rows = tile.rows(found.count, columns)
    made = Launch(
        kernel, (tile.cdiv(found.count, rows),), problem.device, ROWS=rows, COLUMNS=columns, **constants
    )
    return made, (found.count, found.length, tuple(n for steps in found.steps for n in steps))
