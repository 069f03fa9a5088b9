"""sep_conv2d_batch_norm: what sep_conv2d computes, then what batch_norm does, as one function."""

from __future__ import annotations

from typing import Any

import jax

from nxcore_jax import batch_norm, sep_conv2d
from nxcore_jax.bridge import jitted


def compute(*args: Any) -> tuple[jax.Array, ...]:
    """Return the output, what lies before the norm, and the statistics."""
    *convolution, weight, bias, eps = args
    y = sep_conv2d.compute(*convolution)
    out, mean, var = batch_norm.compute(y, weight, bias, eps)
    return out, y, mean, var


plan = jitted(compute)


def compute_backward(grad: jax.Array, *args: Any) -> tuple[jax.Array | None, ...]:
    """Return the gradients, None for one that is not requested."""
    x, dw_weight, pw_weight, y, mean, var, weight, *window, eps, mask = args
    inner, *factors = batch_norm.compute_backward(grad, y, mean, var, weight, eps, (any(mask[:3]), *mask[3:]))
    if inner is None:
        return None, None, None, *factors
    return *sep_conv2d.compute_backward(inner, x, dw_weight, pw_weight, *window, mask[:3]), *factors


plan_backward = jitted(compute_backward)
