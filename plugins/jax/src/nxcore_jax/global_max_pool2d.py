"""global_max_pool2d: one maximum, which takes NaN for the largest."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged


def compute(x: jax.Array) -> jax.Array:
    """Return the largest over height and width."""
    return jnp.max(x, axis=(-2, -1), keepdims=True)


def plan(problem: Problem) -> Bridged:
    """Jit the maximum."""
    return Bridged(problem, compute)
