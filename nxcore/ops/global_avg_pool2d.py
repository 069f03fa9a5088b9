"""global_avg_pool2d: the mean of each channel of an image.

    out[n, c] = sum over h, w of x[n, c, h, w] / (H * W)

Semantics of ``torch.nn.functional.adaptive_avg_pool2d(x, 1)``. The gradient is a view with stride 0: no image
is written, so no kernel can be faster.

    grad_x[n, c, h, w] = grad[n, c] / (H * W)
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.max_pool2d import IMAGE_SIZE, ways
from nxcore.plugin import (
    DEGENERATE,
    SAME,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    backward_of,
    laid_out,
    memory_format,
    rand,
    require_image,
    require_size,
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


def outputs(x: Any) -> TensorMeta:
    """Describe one value for each channel."""
    return laid_out((*x.shape[:-2], 1, 1), memory_format(x), x.dtype, x.device)


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
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda x: x.shape[-2] * x.shape[-1],
    idioms=MappingProxyType({"mean": by_mean}),
    ways=ways,
    gradient=Gradient("global_avg_pool2d_backward", _backward),
    outputs=outputs,
    autocast=SAME,
)


def gradient(grad: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return ``grad`` divided by H * W and expanded to ``size``.

    Parameters
    ----------
    grad : Tensor
        The gradient of the means, (N, C, 1, 1) or (C, 1, 1).
    size : tuple of int
        The shape of the input, (N, C, H, W) or (C, H, W).

    Returns
    -------
    Tensor
        Shape ``size``, with stride 0 along H and W.

    Raises
    ------
    InvalidInputError
        If ``size`` isn't that of an image, or ``grad`` isn't of the means' shape.

    Examples
    --------
    >>> nxcore.ops.global_avg_pool2d_backward(torch.ones(1, 1, 1), (1, 2, 2))
    tensor([[[0.2500, 0.2500],
             [0.2500, 0.2500]]])
    """
    return (grad / (size[-2] * size[-1])).expand(size)


def require_pooled(size: Any) -> None:
    """Raise unless ``size`` is that of an image with pixels."""
    require_size(size, "size")
    if len(size) not in (3, 4) or 0 in size[-3:]:
        raise InvalidInputError(
            f"size must be (C, H, W) or (N, C, H, W) with nothing but N of size 0, got {tuple(size)}",
            argument="size",
        )


def each_channel(size: Any) -> tuple[int, ...]:
    """Return the shape of one value for each channel."""
    return (*size[:-2], 1, 1)


def gradient_outputs(grad: Any, size: Any) -> TensorMeta | None:
    """Describe the view of a row-major gradient; None for others, of which torch chooses the strides."""
    if not grad.is_contiguous() or not all(type(n) is int and n for n in size):
        return None
    own = TensorMeta.row_major(tuple(grad.shape), grad.dtype, grad.device).strides
    strides = tuple(s if n == m else 0 for s, n, m in zip(own, grad.shape, size, strict=True))
    return TensorMeta(tuple(size), strides, grad.dtype, grad.device)


def gradient_cost(grad: Any, size: Any) -> Cost:
    """Count grad read once, one value written for each channel."""
    return Cost(bytes=2 * grad.nbytes, flops=grad.numel())


def gradient_magnitude(grad: Tensor, size: Any) -> Tensor:
    """Return the gradient of absolute values."""
    return gradient(grad.abs(), size)


BACKWARD = backward_of(
    SPEC,
    gradient,
    params=(IMAGE_SIZE,),
    check=require_pooled,
    shape=each_channel,
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    given=lambda sample: None,  # a view of any gradient
    samples=(
        Sample("head", (rand(2, 5, 1, 1), (2, 5, 7, 9)), tags=SMOKE),
        Sample("one_plane", (rand(3, 1, 1), (3, 9, 8))),
        Sample("stride_zero_grad", (rand(3, 2, 1, 1, layout="expanded"), (3, 2, 6, 8))),
    ),
    errors=(
        ErrorCase("rank", (rand(2, 1), (7, 9)), match=r"size must be \(C, H, W\) or \(N, C, H, W\)"),
        ErrorCase("no_pixels", (rand(2, 5, 1, 1), (2, 5, 0, 9)), match="nothing but N of size 0"),
        ErrorCase("not_a_size", (rand(2, 5, 1, 1), None), match="size must be a sequence of integers"),
    ),
    terms=lambda grad, size: 1,
    view=lambda grad, size: True,
    outputs=gradient_outputs,
)
