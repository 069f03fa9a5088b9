"""gumbel_softmax_backward: p[i] (grad[i] - sum_j p[j] grad[j]) / tau."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide
from nxcore_jax.gumbel_softmax import noisy


def compute(grad: jax.Array, logits: jax.Array, tau: Any, noise: jax.Array) -> jax.Array:
    """Return the gradient of the logits."""
    p, g = jax.nn.softmax(noisy(logits, tau, noise), -1), wide(grad)
    return p * (g - jnp.sum(p * g, -1, keepdims=True)) / jnp.float32(tau)


def plan(problem: Problem) -> Bridged:
    """Jit the gradient."""
    _, *others = problem.outputs
    return Bridged(problem, lambda *args: (compute(*args[:-1]), *others))
