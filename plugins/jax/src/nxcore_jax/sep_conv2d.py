"""sep_conv2d: ReLU, XLA's own depthwise convolution, and a product with the 1x1 weights, in float32."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from nxcore_jax.bridge import jitted, wide
from nxcore_jax.depthwise_conv2d import convolve


def separable(x: jax.Array, dw_weight: jax.Array, pw_weight: jax.Array, *where: Any, relu: bool) -> jax.Array:
    """Return both convolutions of (N, C, H, W) or (C, H, W), in float32."""
    image = wide(x)
    # Not jax.nn.relu, whose gradient is 0 at NaN.
    between = convolve(jnp.where(image <= 0, 0, image) if relu else image, dw_weight, *where)
    points = wide(pw_weight).reshape(pw_weight.shape[:2])
    return jnp.einsum("oc,...chw->...ohw", points, between, precision=lax.Precision.HIGHEST)  # not TF32


def compute(x: jax.Array, dw_weight: jax.Array, pw_weight: jax.Array, *arguments: Any) -> jax.Array:
    """Return the output."""
    *where, relu = arguments
    return separable(x, dw_weight, pw_weight, *where, relu=relu)


plan = jitted(compute)


def compute_backward(
    grad: jax.Array, x: jax.Array, dw_weight: jax.Array, pw_weight: jax.Array, *arguments: Any
) -> Any:
    """Return the gradients, None for one that is not requested."""
    *where, relu, mask = arguments
    given = (wide(x), wide(dw_weight), wide(pw_weight))
    _, pull = jax.vjp(lambda *tensors: separable(*tensors, *where, relu=relu), *given)
    return tuple(g if asked else None for g, asked in zip(pull(wide(grad)), mask, strict=True))


plan_backward = jitted(compute_backward)
