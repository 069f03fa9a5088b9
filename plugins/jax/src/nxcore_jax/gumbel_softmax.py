"""gumbel_softmax: the softmax of noisy logits, or the first of their largest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide


def noisy(logits: jax.Array, tau: Any, noise: jax.Array) -> jax.Array:
    """Return the logits plus Gumbel noise, over the temperature."""
    return (wide(logits) - jnp.log(wide(noise))) / jnp.float32(tau)


def compute(logits: jax.Array, tau: Any, hard: bool, noise: jax.Array) -> jax.Array:
    """Return the weights of each row."""
    z = noisy(logits, tau, noise)
    weights = jax.nn.softmax(z, -1)
    if not hard:
        return weights
    largest = jax.nn.one_hot(jnp.argmax(z, -1), z.shape[-1], dtype=z.dtype)
    return jnp.where(jnp.isnan(weights), weights, largest)


def plan(problem: Problem) -> Bridged:
    """Jit it."""
    return Bridged(problem, compute)
