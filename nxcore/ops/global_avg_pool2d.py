"""global_avg_pool2d: the mean of each channel of an image.

    out[n, c] = sum over h, w of x[n, c, h, w] / (H * W)

Semantics of ``torch.nn.functional.adaptive_avg_pool2d(x, 1)``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.max_pool2d import ways
from nxcore.plugin import (
    DEGENERATE,
    SAME,
    Cost,
    ErrorCase,
    Gradient,
    OpSpec,
    Param,
    Sample,
    rand,
    require_image,
    require_tensor,
)


def reference(x: Tensor) -> Tensor:
    """Return the mean of each channel, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W) or (C, H, W), floating, any strides.

    Returns
    -------
    Tensor
        Shape (N, C, 1, 1) or (C, 1, 1), row-major, dtype of ``x``.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't an image.

    Examples
    --------
    >>> nxcore.ops.global_avg_pool2d(torch.arange(8.0).view(2, 2, 2)).flatten()
    tensor([1.5000, 5.5000])
    """
    return functional.adaptive_avg_pool2d(x, 1)


def by_mean(x: Tensor) -> Tensor:
    """Reduce over the last two axes."""
    return x.mean((-2, -1), keepdim=True)


def check(x: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x")
    require_image(x)


def cost(x: Any) -> Cost:
    """Count x read once, one value written for each channel; one operation for each element."""
    return Cost(bytes=x.nbytes + torch.Size(x.shape[:-2]).numel() * x.element_size(), flops=x.numel())


def magnitude(x: Tensor) -> Tensor:
    """Return the mean of absolute values."""
    return reference(x.abs())


def _backward(grad: Any, mask: tuple[bool, ...], x: Any) -> tuple[Any, ...]:
    return grad, tuple(x.shape)


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("head", (rand(3, 5, 7, 9),), tags=SMOKE),
    Sample("channels_last", (rand(2, 9, 7, 6, layout="channels_last"),), tags=SMOKE),
    Sample("nan", (rand(3, 5, 2, 3, values="nan"),), tags=SMOKE),
    Sample("one_plane", (rand(9, 8, 9),)),
    Sample("one_pixel", (rand(2, 3, 1, 1),)),
    Sample("no_images", (rand(0, 3, 6, 6),), tags=DEGENERATE),
    Sample("inf", (rand(2, 12, 3, 2, values="inf"),)),
    Sample("transposed", (rand(4, 3, 6, 7, layout="transposed"),)),
    Sample("odd_storage_offset", (rand(2, 3, 8, 12, layout="sliced"),)),
    Sample("gaps_in_memory", (rand(2, 3, 8, 9, layout="strided"),)),
    Sample("expanded", (rand(3, 2, 6, 8, layout="expanded"),)),
    Sample("one_image_channels_last", (rand(1, 33, 9, 15, layout="channels_last"),)),
    Sample("accumulator_past_float16", (rand(2, 3, 50, 41, low=0, high=90),)),
    Sample("cifar", (rand(64, 256, 8, 8),), tags=BENCH),
    Sample("cifar_early", (rand(64, 64, 32, 32),), tags=BENCH),
    Sample("imagenet", (rand(32, 1280, 7, 7),), tags=BENCH),
    Sample("imagenet_channels_last", (rand(32, 1280, 7, 7, layout="channels_last"),), tags=BENCH),
    Sample("imagenet_early", (rand(256, 64, 56, 56),), tags=BENCH | {"huge"}),
    Sample(
        "imagenet_early_channels_last",
        (rand(256, 64, 56, 56, layout="channels_last"),),
        tags=BENCH | {"huge"},
    ),
)

ERRORS = (
    ErrorCase("rank", (rand(3, 4),), match=r"x must be \(C, H, W\) or \(N, C, H, W\) .* got \(3, 4\)"),
    ErrorCase("no_pixels", (rand(2, 3, 0, 4),), match="nothing but N of size 0"),
    ErrorCase("integers", (rand(1, 2, 4, 4, dtype=torch.int32),), match="x must have a floating dtype"),
    ErrorCase("not_a_tensor", (1.0,), match="x must be a tensor, got float"),
)

SPEC = OpSpec(
    name="global_avg_pool2d",
    params=(Param("x", "tensor"),),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda x: x.shape[-2] * x.shape[-1],
    idioms=MappingProxyType({"mean": by_mean}),
    ways=ways,
    gradient=Gradient("global_avg_pool2d_backward", _backward),
    autocast=SAME,
)
