"""depthwise_conv2d: XLA's own convolution with a group for each channel, in float32."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from nxcore.plugin import Window
from nxcore_jax.bridge import jitted, wide


def convolve(x: jax.Array, weight: jax.Array, *where: Any) -> jax.Array:
    """Return each channel of (N, C, H, W) or (C, H, W) convolved with its filter, in float32."""
    window = Window.of_convolution(x.shape, (weight.shape[-2], weight.shape[-1]), *where)
    left, right, above, below = window.padded
    images = wide(x).reshape(-1, *x.shape[-3:])
    result = lax.conv_general_dilated(
        images,
        wide(weight),
        window_strides=window.stride,
        padding=((above, below), (left, right)),
        rhs_dilation=window.dilation,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=images.shape[1],
        precision=lax.Precision.HIGHEST,  # or a GPU would take TF32
    )
    return result.reshape(*x.shape[:-2], *window.outputs)


plan = jitted(convolve)


def compute(grad: jax.Array, x: jax.Array, weight: jax.Array, *arguments: Any) -> Any:
    """Return both gradients, None for one that is not requested."""
    *where, mask = arguments
    _, pull = jax.vjp(lambda image, filters: convolve(image, filters, *where), wide(x), wide(weight))
    gradients = pull(wide(grad))
    return tuple(g if asked else None for g, asked in zip(gradients, mask, strict=True))


plan_backward = jitted(compute)
