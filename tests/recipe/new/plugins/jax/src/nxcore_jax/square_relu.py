"""square_relu and its gradient, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from nxcore_jax.bridge import Bridged, wide

from nxcore.plugin import Problem


def compute(x: jax.Array) -> jax.Array:
    """Return the square of what is positive."""
    return jnp.square(positive(x))


def positive(x: jax.Array) -> jax.Array:
    """Return what is positive, and NaN."""
    return jnp.where(x < 0, 0.0, wide(x))


def gradient(grad: jax.Array, x: jax.Array) -> jax.Array:
    """Return the gradient."""
    return 2 * positive(x) * wide(grad)


def plan(problem: Problem) -> Bridged:
    """Jit the square."""
    return Bridged(problem, compute)


def plan_backward(problem: Problem) -> Bridged:
    """Jit the gradient."""
    return Bridged(problem, gradient)
