"""avg_pool2d: ``reduce_window`` in float32, over divisors that the shapes fix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nxcore.plugin import Window
from nxcore_jax.bridge import jitted, wide


def divisors(window: Window, count_include_pad: bool, divisor_override: int | None) -> np.ndarray:
    """Return what torch divides each output by, in float32: a window beyond the padding is cut off there."""
    if divisor_override is not None:
        return np.full((1, 1), divisor_override, np.float32)
    counts = []
    for n, o, k, s, p in zip(
        window.image, window.outputs, window.kernel, window.stride, window.padding, strict=True
    ):
        first = np.arange(o) * s - p
        last = np.minimum(first + k, n + p)
        if not count_include_pad:
            first, last = np.maximum(first, 0), np.minimum(last, n)
        counts.append(last - first)
    return np.outer(*counts).astype(np.float32)


def compute(
    x: jax.Array,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> jax.Array:
    """Return the means."""
    window = Window.of_pool(x.shape, kernel_size, stride, padding, 1, ceil_mode)
    left, right, above, below = window.padded
    lead = (1,) * (x.ndim - 2)
    total = lax.reduce_window(
        wide(x),
        jnp.float32(0),
        lax.add,
        (*lead, *window.kernel),
        (*lead, *window.stride),
        ((0, 0),) * (x.ndim - 2) + ((above, below), (left, right)),
    )
    return total / divisors(window, count_include_pad, divisor_override)


plan = jitted(compute)


def compute_backward(
    grad: jax.Array,
    size: tuple[int, ...],
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    memory_format: Any,
) -> jax.Array:
    """Return the gradient of the input: each adds up the windows that it lies in."""
    window = Window.of_pool(size, kernel_size, stride, padding, 1, ceil_mode)
    scaled = wide(grad) / divisors(window, count_include_pad, divisor_override)
    lead = len(size) - 2
    # An input's windows reach back from it by the kernel; beyond the last window there is nothing to add.
    edges = [
        (k - 1 - p, n + p - (o - 1) * s - 1)
        for n, o, k, s, p in zip(
            window.image, window.outputs, window.kernel, window.stride, window.padding, strict=True
        )
    ]
    return lax.reduce_window(
        scaled,
        jnp.float32(0),
        lax.add,
        (*(1,) * lead, *window.kernel),
        (1,) * len(size),
        ((0, 0),) * lead + tuple(edges),
        base_dilation=(*(1,) * lead, *window.stride),
    )


plan_backward = jitted(compute_backward)
