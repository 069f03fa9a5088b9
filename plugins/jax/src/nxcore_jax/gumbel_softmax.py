"""gumbel_softmax: the softmax of noisy logits, or the first of their largest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, jitted, wide


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


plan = jitted(compute)


def compute_backward(grad: jax.Array, logits: jax.Array, tau: Any, noise: jax.Array) -> jax.Array:
    """Return the gradient of the logits."""
    p, g = jax.nn.softmax(noisy(logits, tau, noise), -1), wide(grad)
    return p * (g - jnp.sum(p * g, -1, keepdims=True)) / jnp.float32(tau)


def plan_backward(problem: Problem) -> Bridged:
    """Jit the gradient."""
    _, *others = problem.outputs
    return Bridged(problem, lambda *args: (compute_backward(*args[:-1]), *others))
