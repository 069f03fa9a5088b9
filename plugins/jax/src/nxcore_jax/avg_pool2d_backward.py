"""avg_pool2d_backward: ``reduce_window`` over the gradients, each divided and set apart by the stride."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nxcore.plugin import Problem, Window
from nxcore_jax.avg_pool2d import divisors
from nxcore_jax.bridge import Bridged, wide


def compute(
    grad: jax.Array,
    size: tuple[int, ...],
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    memory_format: Any,  # noqa: ARG001  that of the problem's output
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


def plan(problem: Problem) -> Bridged:
    """Jit the gradient."""
    return Bridged(problem, compute)
