"""sum_to_size: one reduction in float32 over what broadcasting made or stretched."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide


def summed(x: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """Return ``x`` summed to ``size``, in float32."""
    lead = x.ndim - len(size)
    axes = tuple(i for i in range(x.ndim) if i < lead or (size[i - lead] == 1 and x.shape[i] != 1))
    return jnp.sum(wide(x), axis=axes, keepdims=True).reshape(size)


def plan(problem: Problem) -> Bridged:
    """Jit the sum."""
    return Bridged(problem, summed)
