"""global_max_pool2d_with_offsets: global_max_pool2d, with each maximum's position for its gradient.

    out[n, c] = max over h, w of x[n, c, h, w];  offsets[n, c] = h * W + w of that element

The rule of torch's pools: an element replaces the previous maximum where it is larger, or NaN. So the first
of equal elements counts, and the last NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.global_avg_pool2d import ERRORS
from nxcore.ops.global_avg_pool2d import check as check_image
from nxcore.ops.global_avg_pool2d import outputs as each_channels
from nxcore.ops.global_max_pool2d import NUMBERED, SAMPLES
from nxcore.ops.max_pool2d import ways
from nxcore.plugin import SAME, Cost, InvalidInputError, OpSpec, Param, TensorMeta


def reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest element of each channel, and its position.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W) or (C, H, W), floating, any strides, with fewer than 2**31 pixels.

    Returns
    -------
    out : Tensor
        As ``global_max_pool2d``.
    offsets : Tensor
        int32, with the shape and strides of ``out``: ``row * W + column``.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't an image, or has more pixels.

    Examples
    --------
    >>> nxcore.ops.global_max_pool2d_with_offsets(torch.arange(4.0).view(1, 2, 2))
    (tensor([[[3.]]]), tensor([[[3]]], dtype=torch.int32))
    """
    pool: Any = functional.adaptive_max_pool2d  # torch's annotations require a literal flag
    largest, places = pool(x, 1, return_indices=True)
    return largest, places.to(torch.int32)


def check(x: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    check_image(x)
    if x.shape[-2] * x.shape[-1] >= NUMBERED:
        raise InvalidInputError(
            f"x must have fewer than 2**31 pixels, got {x.shape[-2]} x {x.shape[-1]}", argument="x"
        )


def outputs(x: Any) -> tuple[TensorMeta, TensorMeta]:
    """Describe the maxima and the offsets."""
    largest = each_channels(x)
    return largest, replace(largest, dtype=torch.int32)


def cost(x: Any) -> Cost:
    """Count x read once, maxima and offsets written once; one comparison for each element."""
    written = torch.Size(x.shape[:-2]).numel() * (x.element_size() + torch.int32.itemsize)
    return Cost(bytes=x.nbytes + written, flops=x.numel())


def magnitude(x: Tensor) -> Any:
    """Return the reference's result, since it never rounds."""
    return reference(x)


SPEC = OpSpec(
    name="global_max_pool2d_with_offsets",
    params=(Param("x", "tensor"),),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda x: 1,
    exact=True,
    outputs=outputs,
    autocast=SAME,
    ways=ways,
)
