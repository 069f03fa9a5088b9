"""global_max_pool2d_with_offsets: the maximum, and the first place that equals it, or the last NaN's."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged
from nxcore_jax.global_max_pool2d import compute as largest


def compute(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the maxima and their places."""
    best = largest(x)
    places = jnp.arange(x.shape[-2] * x.shape[-1], dtype=jnp.int32).reshape(x.shape[-2:])
    odd = jnp.isnan(best)
    first = jnp.min(jnp.where(x == best, places, places.size), axis=(-2, -1), keepdims=True)
    last = jnp.max(jnp.where(jnp.isnan(x), places, 0), axis=(-2, -1), keepdims=True)
    return best, jnp.where(odd, last, first)


def plan(problem: Problem) -> Bridged:
    """Jit the maximum."""
    return Bridged(problem, compute)
