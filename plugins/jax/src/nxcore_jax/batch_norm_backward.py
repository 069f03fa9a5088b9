"""batch_norm_backward: two sums a channel, then a sum of products an element."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem
from nxcore_jax.batch_norm import along, axes, values
from nxcore_jax.bridge import Bridged, wide


def compute(
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


def plan(problem: Problem) -> Bridged:
    """Jit the gradients."""
    return Bridged(problem, compute)
