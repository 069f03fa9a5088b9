"""depthwise_conv2d_backward: what JAX's own differentiation makes of the convolution in float32."""

from __future__ import annotations

from typing import Any

import jax

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide
from nxcore_jax.depthwise_conv2d import convolve


def compute(grad: jax.Array, x: jax.Array, weight: jax.Array, *arguments: Any) -> Any:
    """Return both gradients, None for one that isn't asked for."""
    *where, mask = arguments
    _, pull = jax.vjp(lambda image, filters: convolve(image, filters, *where), wide(x), wide(weight))
    gradients = pull(wide(grad))
    return tuple(g if asked else None for g, asked in zip(gradients, mask, strict=True))


def plan(problem: Problem) -> Bridged:
    """Jit the gradients."""
    return Bridged(problem, compute)
