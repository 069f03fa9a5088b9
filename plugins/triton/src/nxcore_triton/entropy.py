"""entropy: log(sum_i exp(-d[i])) + sum_i p[i] d[i], with d[i] = max(logits) - logits[i]: nothing cancels."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from nxcore_triton import rows
from nxcore_triton.rounding import narrow
from nxcore_triton.rows import load, place, softmax, store


@triton.jit
def entropy(logits, out, count, length, steps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the entropies of ROWS rows."""
    row, column, mask = place(count, length, ROWS, COLUMNS)
    p, d, total = softmax(load(logits, steps[0], steps[1], row, column, mask, float("-inf")))
    found = tl.log(total) + tl.sum(p * d, 1)
    tl.store(out + row * steps[2], narrow(found, out.dtype.element_ty), row < count)


@triton.jit
def entropy_backward(grad, logits, out, count, length, steps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the gradients of ROWS rows."""
    row, column, mask = place(count, length, ROWS, COLUMNS)
    g = load(grad, steps[0], steps[1], row, column, mask, 0.0)
    p, d, _ = softmax(load(logits, steps[2], steps[3], row, column, mask, float("-inf")))
    mean = tl.sum(p * d, 1)
    store(out, steps[4], steps[5], row, column, mask, p * (d - mean[:, None]) * g)


plan = rows.planner(entropy)
plan_backward = rows.planner(entropy_backward)
