"""global_max_pool2d: one maximum, which takes NaN for the largest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore_jax.bridge import jitted


def compute(x: jax.Array) -> jax.Array:
    """Return the largest over height and width."""
    return jnp.max(x, axis=(-2, -1), keepdims=True)


plan = jitted(compute)


def compute_with_offsets(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the maxima and their places."""
    best = compute(x)
    places = jnp.arange(x.shape[-2] * x.shape[-1], dtype=jnp.int32).reshape(x.shape[-2:])
    odd = jnp.isnan(best)
    first = jnp.min(jnp.where(x == best, places, places.size), axis=(-2, -1), keepdims=True)
    last = jnp.max(jnp.where(jnp.isnan(x), places, 0), axis=(-2, -1), keepdims=True)
    return best, jnp.where(odd, last, first)


plan_with_offsets = jitted(compute_with_offsets)


def compute_backward(grad: jax.Array, offsets: jax.Array, size: tuple[int, ...], _form: Any) -> jax.Array:
    """Return the gradient of the input."""
    places = jnp.arange(size[-2] * size[-1], dtype=jnp.int32).reshape(size[-2:])
    return jnp.where(places == offsets, grad, jnp.zeros((), grad.dtype))


plan_backward = jitted(compute_backward)
