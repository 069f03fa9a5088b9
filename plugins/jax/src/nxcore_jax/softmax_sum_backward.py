"""softmax_sum_backward: a product for each candidate and, for the logits, a sum of products for each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide


def compute(grad: jax.Array, xs: Any, logits: jax.Array, output_mask: tuple[bool, ...] | None) -> Any:
    """Return the gradients of a sequence of arrays, or of one that stacks them, and of the logits."""
    stacked, count = isinstance(xs, jax.Array), logits.shape[0]
    mask = output_mask or (True,) * (2 if stacked else count + 1)
    weights, g = jax.nn.softmax(wide(logits)), wide(grad)
    logits_grad = None
    if mask[-1]:
        if stacked:
            dots = jnp.sum(g * wide(xs), axis=tuple(range(1, xs.ndim)))
        else:
            dots = jnp.stack([jnp.sum(g * wide(x)) for x in xs])
        logits_grad = weights * (dots - jnp.sum(weights * dots))
    if stacked:
        return (weights.reshape(-1, *(1,) * g.ndim) * g if mask[0] else None), logits_grad
    return tuple(weights[i] * g if m else None for i, m in enumerate(mask[:-1])), logits_grad


def plan(problem: Problem) -> Bridged:
    """Jit the gradients."""
    return Bridged(problem, compute)
