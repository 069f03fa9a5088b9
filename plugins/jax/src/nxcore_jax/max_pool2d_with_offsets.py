"""max_pool2d_with_offsets: the taps one after the other, which XLA fuses into one loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem, Window
from nxcore_jax.bridge import Bridged
from nxcore_jax.taps import each_tap, pad, seen


def largest(x: jax.Array, window: Window) -> tuple[jax.Array, jax.Array]:
    """Return the maxima, and the number of each one's tap as int32: the first of equals, or the last NaN."""
    wide = pad(x, window, -jnp.inf)
    image = pad(jnp.ones(x.shape[-2:], bool), window, False)

    def visit(tap: Any, state: Any) -> Any:
        best, offsets, found = state
        value, inside = seen(wide, window, tap), seen(image, window, tap)
        larger = inside & (~found | (value > best) | jnp.isnan(value))
        best = jnp.where(larger, value, best)
        return best, jnp.where(larger, jnp.int32(tap), offsets), found | inside

    shape = (*x.shape[:-2], *window.outputs)
    empty = (jnp.full(shape, -jnp.inf, x.dtype), jnp.zeros(shape, jnp.int32), jnp.zeros(window.outputs, bool))
    best, offsets, _ = each_tap(window, visit, empty)
    return best, offsets


def compute(x: jax.Array, *where: Any) -> tuple[jax.Array, jax.Array]:
    """Return the maxima and their taps."""
    return largest(x, Window.of_pool(x.shape, *where))


def plan(problem: Problem) -> Bridged:
    """Jit the pool."""
    return Bridged(problem, compute)
