"""max_pool2d: ``reduce_window``; where indices are asked for, the taps one after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nxcore.plugin import Problem, Window
from nxcore_jax.bridge import Bridged
from nxcore_jax.max_pool2d_with_offsets import largest


def compute(x: jax.Array, *arguments: Any) -> Any:
    """Return the maxima, and where they lie on the plane if asked for."""
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


def plan(problem: Problem) -> Bridged:
    """Jit the pool."""
    return Bridged(problem, compute)
