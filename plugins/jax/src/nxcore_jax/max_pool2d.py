"""max_pool2d: ``reduce_window``; where indices are requested, the taps one after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nxcore.plugin import Window
from nxcore_jax.bridge import jitted, wide
from nxcore_jax.taps import crop, each_tap, pad, seen, start


def compute(x: jax.Array, *arguments: Any) -> Any:
    """Return the maxima, and where they lie on the plane if requested."""
    *where, indices = arguments
    window = Window.of_pool(x.shape, *where)
    if indices:
        return maxima_and_indices(x, window)
    lead = (1,) * (x.ndim - 2)
    left, right, above, below = window.padded
    return lax.reduce_window(
        x,
        jnp.asarray(-jnp.inf, x.dtype),
        lax.max,
        (*lead, *window.kernel),
        (*lead, *window.stride),
        ((0, 0),) * (x.ndim - 2) + ((above, below), (left, right)),
        window_dilation=(*lead, *window.dilation),
    )


def maxima_and_indices(x: jax.Array, window: Window) -> tuple[jax.Array, jax.Array]:
    """Return the maxima, and ``row * width + column`` of each on the plane."""
    best, tap = largest(x, window)
    row = jnp.arange(window.outputs[0]).reshape(-1, 1) * window.stride[0] - window.padding[0]
    column = jnp.arange(window.outputs[1]) * window.stride[1] - window.padding[1]
    row = row + tap // window.kernel[1] * window.dilation[0]
    column = column + tap % window.kernel[1] * window.dilation[1]
    return best, row * window.image[1] + column


plan = jitted(compute)


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


def compute_with_offsets(x: jax.Array, *where: Any) -> tuple[jax.Array, jax.Array]:
    """Return the maxima and their taps."""
    return largest(x, Window.of_pool(x.shape, *where))


plan_with_offsets = jitted(compute_with_offsets)


def compute_backward(grad: jax.Array, offsets: jax.Array, size: tuple[int, ...], *where: Any) -> jax.Array:
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


plan_backward = jitted(compute_backward)
