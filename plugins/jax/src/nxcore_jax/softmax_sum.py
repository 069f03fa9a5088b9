"""softmax_sum: one reduction of a stack; products of separate candidates are added up one after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide


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


def plan(problem: Problem) -> Bridged:
    """Jit the blend."""
    return Bridged(problem, compute)
