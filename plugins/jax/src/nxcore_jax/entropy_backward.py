"""entropy_backward: p[i] (d[i] - sum_j p[j] d[j]) grad, with p and d as in entropy."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide
from nxcore_jax.entropy import probabilities


def compute(grad: jax.Array, logits: jax.Array) -> jax.Array:
    """Return the gradient of each row."""
    p, d, _ = probabilities(wide(logits))
    return p * (d - jnp.sum(p * d, -1, keepdims=True)) * wide(grad)[..., None]


def plan(problem: Problem) -> Bridged:
    """Jit the gradient."""
    return Bridged(problem, compute)
