"""max_pool2d_backward: tap after tap, the gradients of the outputs that it won, put back in their places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nxcore.plugin import Problem, Window
from nxcore_jax.bridge import Bridged, wide
from nxcore_jax.taps import crop, each_tap, start


def compute(grad: jax.Array, offsets: jax.Array, size: tuple[int, ...], *where: Any) -> jax.Array:
    """Return the gradient of the input: sums in one order, and no scatter."""
    window, g = Window.of_pool(size, *where), wide(grad)
    left, right, above, below = window.padded
    lead = (0,) * (len(size) - 2)
    spread = [(0, 0, 0)] * len(lead) + [(0, 0, s - 1) for s in window.stride]

    def visit(tap: Any, total: jax.Array) -> jax.Array:
        won = jnp.where(offsets == jnp.asarray(tap, offsets.dtype), g, 0.0)
        block = lax.pad(won, jnp.float32(0), spread)
        at = (*lead, *start(window, tap))
        # With a tap that is known, XLA makes slices of these and adds up in one loop.
        return lax.dynamic_update_slice(total, lax.dynamic_slice(total, at, block.shape) + block, at)

    shape = (*size[:-2], window.image[0] + above + below, window.image[1] + left + right)
    return crop(each_tap(window, visit, jnp.zeros(shape, jnp.float32)), window)


def plan(problem: Problem) -> Bridged:
    """Jit the gradient."""
    return Bridged(problem, compute)
