"""batch_norm: the statistics in two passes, in float32, then a product and a sum an element."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from nxcore_jax.bridge import jitted, wide


def axes(x: jax.Array) -> tuple[int, ...]:
    """Return the axes that statistics are taken over."""
    return (0, *range(2, x.ndim))


def along(factor: jax.Array, x: jax.Array) -> jax.Array:
    """Return one number a channel as it is multiplied with images."""
    return wide(factor).reshape(-1, *(1,) * (x.ndim - 2))


def values(x: jax.Array) -> int:
    """Return how many values a channel has."""
    return math.prod(x.shape[i] for i in axes(x))


def statistics(x: jax.Array) -> tuple[Any, ...]:
    """Return deviations from the mean, the mean, the sum of squared deviations, and of how many values."""
    mean = jnp.mean(wide(x), axis=axes(x))
    off = wide(x) - along(mean, x)
    return off, mean, jnp.sum(off * off, axis=axes(x)), values(x)


def compute(x: jax.Array, weight: Any, bias: Any, eps: float) -> tuple[jax.Array, ...]:
    """Return the normalised images and the statistics."""
    off, mean, squares, count = statistics(x)
    y = off / along(jnp.sqrt(squares / count + eps), x)
    if weight is not None:
        y = y * along(weight, x) + along(bias, x)
    return y, mean, squares / (count - 1)


plan = jitted(compute)


def compute_backward(
    grad: jax.Array,
    x: jax.Array,
    mean: jax.Array,
    var: jax.Array,
    weight: Any,
    eps: float,
    output_mask: tuple[bool, ...],
) -> tuple[jax.Array | None, ...]:
    """Return the gradients of the images and of the factors."""
    count, g, off = values(x), wide(grad), wide(x) - along(mean, x)
    inverse = 1 / jnp.sqrt(wide(var) * ((count - 1) / count) + eps)
    total, product = jnp.sum(g, axis=axes(x)), jnp.sum(g * off, axis=axes(x))
    slope = product / count * inverse * inverse
    x_grad = along(inverse, x) * (g - along(total / count, x) - off * along(slope, x))
    if weight is None:
        return (x_grad if output_mask[0] else None), None, None
    found = x_grad * along(weight, x), product * inverse, total
    return tuple(f if wanted else None for f, wanted in zip(found, output_mask, strict=True))


plan_backward = jitted(compute_backward)
