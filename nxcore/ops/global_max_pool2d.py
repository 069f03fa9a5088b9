"""global_max_pool2d: the largest element of each channel of an image.

    out[n, c] = max over h, w of x[n, c, h, w]

Semantics of ``torch.nn.functional.adaptive_max_pool2d(x, 1)``: NaN is larger than anything. Where a gradient
is needed, ``global_max_pool2d_with_offsets`` runs in its place.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.nn import functional

from nxcore.ops.global_avg_pool2d import ERRORS, check, cost
from nxcore.ops.global_avg_pool2d import SAMPLES as POOL_SAMPLES
from nxcore.ops.max_pool2d import ways
from nxcore.plugin import DEGENERATE, SAME, Gradient, OpSpec, Param, Sample, memory_format, rand

NUMBERED = 2**31
"""Fewer pixels than these are numbered in an int32."""


def reference(x: Tensor) -> Tensor:
    """Return the largest element of each channel.

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
    >>> nxcore.ops.global_max_pool2d(torch.arange(8.0).view(2, 2, 2)).flatten()
    tensor([3., 7.])
    """
    largest: Tensor = functional.adaptive_max_pool2d(x, 1)
    return largest


def by_amax(x: Tensor) -> Tensor:
    """Reduce over the last two axes."""
    return x.amax((-2, -1), keepdim=True)


def magnitude(x: Tensor) -> Tensor:
    """Return the reference's result, since it never rounds."""
    return reference(x)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, offsets: Any) -> tuple[Any, ...]:
    return grad, offsets, tuple(x.shape), memory_format(x)


SAMPLES = (
    *(s for s in POOL_SAMPLES if s.name != "accumulator_past_float16"),
    Sample("all_negative", (rand(2, 3, 5, 13, low=-9, high=-1),)),
    Sample("rows_apart", (rand(2, 3, 37, 5, layout="transposed"),)),
    Sample("ties", (rand(2, 3, 6, 7, values="zeros"),), tags=DEGENERATE),
)

SPEC = OpSpec(
    name="global_max_pool2d",
    params=(Param("x", "tensor"),),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda x: 1,
    exact=True,
    idioms=MappingProxyType({"amax": by_amax}),
    ways=ways,
    gradient=Gradient(
        "global_max_pool2d_backward",
        _backward,
        forward="global_max_pool2d_with_offsets",
        covers=lambda x: x.shape[-2] * x.shape[-1] < NUMBERED,
    ),
    autocast=SAME,
)
