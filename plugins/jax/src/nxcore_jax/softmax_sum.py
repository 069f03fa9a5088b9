"""softmax_sum, weighted_sum: one reduction of a stack; products of separate candidates are added in turn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, jitted, wide


def compute(xs: Any, logits: jax.Array) -> jax.Array:
    """Return the blend of a sequence of arrays, or of one that stacks them."""
    return blend(xs, jax.nn.softmax(wide(logits)))


def blend(xs: Any, weights: jax.Array) -> jax.Array:
    """Return the sum of weighted arrays."""
    if isinstance(xs, jax.Array):
        return jnp.sum(weights.reshape(-1, *(1,) * (xs.ndim - 1)) * wide(xs), axis=0)
    total = weights[0] * wide(xs[0])
    for i in range(1, weights.shape[0]):
        total += weights[i] * wide(xs[i])
    return total


plan = jitted(compute)


def compute_backward(
    grad: jax.Array, xs: Any, logits: jax.Array, output_mask: tuple[bool, ...] | None
) -> Any:
    """Return the gradients of a sequence of arrays, or of one that stacks them, and of the logits."""
    weights = jax.nn.softmax(wide(logits))
    xs_grad, dots = spread(grad, xs, weights, output_mask)
    return xs_grad, None if dots is None else weights * (dots - jnp.sum(weights * dots))


def spread(grad: jax.Array, xs: Any, weights: jax.Array, output_mask: tuple[bool, ...] | None) -> Any:
    """Return the gradients of the arrays, and the sums of their products with ``grad``."""
    stacked, count = isinstance(xs, jax.Array), weights.shape[0]
    mask = output_mask or (True,) * (2 if stacked else count + 1)
    g, dots = wide(grad), None
    if mask[-1]:
        if stacked:
            dots = jnp.sum(g * wide(xs), axis=tuple(range(1, xs.ndim)))
        else:
            dots = jnp.stack([jnp.sum(g * wide(x)) for x in xs])
    if stacked:
        return (weights.reshape(-1, *(1,) * g.ndim) * g if mask[0] else None), dots
    return tuple(weights[i] * g if m else None for i, m in enumerate(mask[:-1])), dots


plan_backward = jitted(compute_backward)


def plan_weighted(problem: Problem) -> Bridged:
    """Jit the blend by weights as they are."""
    return Bridged(problem, lambda xs, weights: blend(xs, wide(weights)))


def plan_weighted_backward(problem: Problem) -> Bridged:
    """Jit its gradients, which have no Jacobian of softmax."""
    return Bridged(problem, lambda grad, xs, weights, mask: spread(grad, xs, wide(weights), mask))
