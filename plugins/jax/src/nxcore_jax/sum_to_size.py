"""sum_to_size: one reduction in float32 over what broadcasting made or stretched."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem, summed_dims
from nxcore_jax.bridge import Bridged, wide


def summed(x: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """Return ``x`` summed to ``size``, in float32."""
    return jnp.sum(wide(x), axis=summed_dims(x.shape, size), keepdims=True).reshape(size)


def plan(problem: Problem) -> Bridged:
    """Jit the sum."""
    return Bridged(problem, summed)
