"""add: in float32, from operands of the result's dtype; backward, sums of what was broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta
from nxcore_jax.bridge import DTYPES, Bridged, wide
from nxcore_jax.reductions import summed_gradients
from nxcore_jax.sum import summed


def plan(problem: Problem) -> Bridged:
    """Jit the sum."""
    dtype = DTYPES[problem.outputs.dtype]
    number = not isinstance(problem["y"], TensorMeta)

    def compute(x: jax.Array, y: Any, alpha: Any, out: None) -> jax.Array:
        other = y if number else wide(y.astype(dtype))
        return wide(x.astype(dtype)) + alpha * other

    return Bridged(problem, compute)


def plan_backward(problem: Problem) -> Callable[..., Any]:
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
