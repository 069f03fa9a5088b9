"""softmax, log_softmax: a program has whole lines in registers, or reads parts of a longer one twice."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Lines, Problem
from nxcore_triton import lines
from nxcore_triton.lines import load, place, starts, store

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def power(x):
    """Return e^x, right to two units in the last place and the rounding of its exponent."""
    return tl.exp2(x * LOG2E)


@triton.jit
def seen(x, top, total):
    """Return the largest entries and the sums of exponentials of distances from these, with one more part."""
    above = tl.maximum(top, tl.max(x, 1))
    base = tl.where(above == float("-inf"), 0.0, above)  # a distance of infinities would be NaN
    total = total * power(top - base) + tl.sum(power(x - base[:, None]), 1)
    return above, total


@triton.jit
def weights(x, top, total, LOG: tl.constexpr):
    """Return the result of a tile."""
    if LOG:
        return x - top[:, None] - tl.log(total)[:, None]
    else:
        return power(x - top[:, None]) * (1.0 / total)[:, None]


@triton.jit
def softmaxes(
    x,
    y,
    count,
    inner,
    length,
    steps,
    LOG: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write ROWS lines."""
    line, there, start = place(count, inner, steps[3], steps[4], ROWS)
    to = starts(line, inner, steps[0], steps[1])
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    column = tl.arange(0, COLUMNS).to(tl.int64)
    if WHOLE:
        mask = there[:, None] & (column < length)[None, :]
        found = load(x, start, steps[5], column, mask, float("-inf"))
        top, total = seen(found, top, total)
        store(y, to, steps[2], column, mask, weights(found, top, total, LOG))
    else:
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            found = load(x, start, steps[5], first + column, mask, float("-inf"))
            top, total = seen(found, top, total)
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            found = load(x, start, steps[5], first + column, mask, float("-inf"))
            store(y, to, steps[2], first + column, mask, weights(found, top, total, LOG))


@triton.jit
def slope(g, y, total, LOG: tl.constexpr):
    """Return the gradient of a tile."""
    if LOG:
        return g - power(y) * total[:, None]
    else:
        return y * (g - total[:, None])


@triton.jit
def softmaxes_backward(
    grad,
    y,
    out,
    count,
    inner,
    length,
    steps,
    LOG: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write the gradients of ROWS lines."""
    line, there, start = place(count, inner, steps[3], steps[4], ROWS)
    own, to = starts(line, inner, steps[6], steps[7]), starts(line, inner, steps[0], steps[1])
    column = tl.arange(0, COLUMNS).to(tl.int64)
    if WHOLE:
        mask = there[:, None] & (column < length)[None, :]
        g, v = load(grad, start, steps[5], column, mask, 0.0), load(y, own, steps[8], column, mask, 0.0)
        total = tl.sum(g if LOG else g * v, 1)
        store(out, to, steps[2], column, mask, slope(g, v, total, LOG))
    else:
        total = tl.zeros((ROWS,), tl.float32)
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            g = load(grad, start, steps[5], first + column, mask, 0.0)
            if not LOG:
                g *= load(y, own, steps[8], first + column, mask, 0.0)
            total += tl.sum(g, 1)
        for first in range(0, length, COLUMNS):
            mask = there[:, None] & (first + column < length)[None, :]
            g = load(grad, start, steps[5], first + column, mask, 0.0)
            v = load(y, own, steps[8], first + column, mask, 0.0)
            store(out, to, steps[2], first + column, mask, slope(g, v, total, LOG))


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, dim, dtype)`` or ``call(grad, y, dim, dtype)``."""
    out, found, count = problem.outputs, Lines.along(problem), len(problem.tensors)
    kernel = softmaxes_backward if count == 2 else softmaxes
    run = lines.launch(kernel, problem.device, found, LOG=problem.op.startswith("log_"))
    rest = (found.count, found.inner, found.length, tuple(n for step in found.steps for n in step))

    def call(*args: Any) -> Tensor:
        result: Tensor = out.empty()
        tensors = (*args[:count], result)
        run(tensors, *tensors, *rest)
        return result

    return call
