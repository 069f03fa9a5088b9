"""add_backward: a reduction for each operand that was broadcast, scaled by ``alpha`` on the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from torch import Tensor

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged
from nxcore_jax.reductions import summed_gradients
from nxcore_jax.sum_to_size import summed


def plan(problem: Problem) -> Callable[..., Any]:
    """Jit the sums; what was not broadcast gets ``grad`` itself, as torch does."""
    sums = summed_gradients(problem)

    def compute(grad: jax.Array, x_size: Any, y_size: Any, alpha: Any, output_mask: Any) -> Any:
        return (summed(grad, x_size) if sums[0] else None, alpha * summed(grad, y_size) if sums[1] else None)

    bridged = Bridged(problem, compute, sums)

    def call(grad: Tensor, x_size: Any, y_size: Any, alpha: Any, output_mask: Any) -> Any:
        x_grad, y_grad = bridged(grad, x_size, y_size, alpha, output_mask)
        if x_grad is None and output_mask[0]:
            x_grad = grad.view(x_size)
        if y_grad is None and output_mask[1]:
            y_grad = grad.view(y_size) if alpha == 1 else grad.view(y_size) * alpha
        return x_grad, y_grad

    return call
