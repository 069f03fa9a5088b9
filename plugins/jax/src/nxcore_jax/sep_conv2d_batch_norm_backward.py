"""sep_conv2d_batch_norm_backward: batch_norm's gradients, then the convolutions', as one function."""

from __future__ import annotations

from typing import Any

import jax

from nxcore.plugin import Problem
from nxcore_jax.batch_norm import compute_backward as norm_backward
from nxcore_jax.bridge import Bridged
from nxcore_jax.sep_conv2d import compute_backward as convolution_backward


def compute(grad: jax.Array, *args: Any) -> tuple[jax.Array | None, ...]:
    """Return the gradients, None for one that is not requested."""
    x, dw_weight, pw_weight, y, mean, var, weight, *window, eps, mask = args
    inner, *factors = norm_backward(grad, y, mean, var, weight, eps, (any(mask[:3]), *mask[3:]))
    if inner is None:
        return None, None, None, *factors
    return *convolution_backward(inner, x, dw_weight, pw_weight, *window, mask[:3]), *factors


def plan(problem: Problem) -> Bridged:
    """Jit all of it."""
    return Bridged(problem, compute)
