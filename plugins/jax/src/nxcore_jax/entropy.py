"""entropy: log(sum_i exp(-d[i])) + sum_i p[i] d[i], with d[i] = max(logits) - logits[i]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nxcore_jax.bridge import jitted, wide


def compute(logits: jax.Array) -> jax.Array:
    """Return the entropy of each row."""
    p, d, total = probabilities(wide(logits))
    return jnp.log(total) + jnp.sum(p * d, -1)


def probabilities(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return each row's softmax, how far below its largest each entry is, and the exponentials' sums."""
    d = jnp.max(x, -1, keepdims=True) - x
    powers = jnp.exp(-d)
    total = jnp.sum(powers, -1)
    p = powers / total[..., None]
    return p, jnp.where(p == 0, 0.0, d), total


plan = jitted(compute)


def compute_backward(grad: jax.Array, logits: jax.Array) -> jax.Array:
    """Return the gradient of each row."""
    p, d, _ = probabilities(wide(logits))
    return p * (d - jnp.sum(p * d, -1, keepdims=True)) * wide(grad)[..., None]


plan_backward = jitted(compute_backward)
