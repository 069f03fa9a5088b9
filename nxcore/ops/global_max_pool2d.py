"""global_max_pool2d: the largest element of each channel of an image.

    out[n, c] = max over h, w of x[n, c, h, w]

Semantics of ``torch.nn.functional.adaptive_max_pool2d(x, 1)``: NaN is larger than anything. Where a gradient
is needed, ``global_max_pool2d_with_offsets`` runs in its place, from whose positions the gradient writes each
element once; the result is not cleared first:

    grad_x[n, c, h, w] = grad[n, c] where h * W + w is offsets[n, c], else 0
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.amax import mirror
from nxcore.ops.global_avg_pool2d import ERRORS, check, cost, each_channel, outputs, require_pooled
from nxcore.ops.global_avg_pool2d import SAMPLES as POOL_SAMPLES
from nxcore.ops.global_avg_pool2d import reference as mean_of_each
from nxcore.ops.max_pool2d import IMAGE_SIZE, MEMORY_FORMAT, ways
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
    Sketch,
    TensorMeta,
    Way,
    backward_of,
    dense,
    laid_out,
    memory_format,
    rand,
    require_memory_format,
    require_shape,
    require_tensor,
)

NUMBERED = 2**31
"""Fewer pixels than these are numbered in an int32."""


@mirror(mean_of_each)
def reference(x: Tensor) -> Tensor:
    """Return the largest element of each channel.

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
    holds="alike",
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
    outputs=outputs,
    autocast=SAME,
)


def gradient(
    grad: Tensor,
    offsets: Tensor,
    size: tuple[int, ...],
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Return the gradient of ``global_max_pool2d``.

    Parameters
    ----------
    grad : Tensor
        The gradient of the maxima, (N, C, 1, 1) or (C, 1, 1), floating.
    offsets : Tensor
        As ``global_max_pool2d_with_offsets`` returns them.
    size : tuple of int
        The shape of the input, (N, C, H, W) or (C, H, W).
    memory_format : torch.memory_format, default torch.contiguous_format
        The memory format of the result.

    Returns
    -------
    Tensor
        Shape ``size``, dtype of ``grad``.

    Raises
    ------
    InvalidInputError
        If ``size`` isn't that of an image, or ``grad`` or ``offsets`` isn't of the maxima's shape.

    Examples
    --------
    >>> offsets = torch.tensor([[[3]]], dtype=torch.int32)
    >>> nxcore.ops.global_max_pool2d_backward(torch.ones(1, 1, 1), offsets, (1, 2, 2))
    tensor([[[0., 0.],
             [0., 1.]]])
    """
    height, width = size[-2:]
    places = torch.arange(height * width, dtype=torch.int32, device=grad.device).view(height, width)
    return dense(torch.where(places == offsets, grad, 0), memory_format)


def by_scattering(
    grad: Tensor,
    offsets: Tensor,
    size: tuple[int, ...],
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Clear the gradient, then write the nonzero elements."""
    shares, places, pixels = grad.flatten(-3), offsets.long().flatten(-3), size[-2] * size[-1]
    if memory_format is torch.channels_last:
        rows = grad.new_zeros(size[0], pixels, size[1])
        rows.scatter_(1, places.unsqueeze(1), shares.unsqueeze(1))
        return rows.view(size[0], *size[2:], size[1]).permute(0, 3, 1, 2)
    planes = grad.new_zeros(*shares.shape, pixels)
    return planes.scatter_(-1, places.unsqueeze(-1), shares.unsqueeze(-1)).view(size)


def gradient_check(offsets: Any, size: Any, form: Any) -> None:
    """Raise unless the gradient is defined for the arguments after the incoming one."""
    require_tensor(offsets, "offsets", floating=False)
    require_pooled(size)
    require_shape(offsets, each_channel(size), "offsets")
    require_memory_format(form, len(size))
    if offsets.dtype is not torch.int32:
        raise InvalidInputError(
            f"offsets must have dtype torch.int32, got {offsets.dtype}", argument="offsets"
        )


def gradient_outputs(grad: Any, offsets: Any, size: Any, memory_format: Any) -> TensorMeta:
    """Describe the gradient."""
    return laid_out(size, memory_format, grad.dtype, grad.device)


def gradient_cost(grad: Any, offsets: Any, size: Any, memory_format: Any) -> Cost:
    """Count grad and the offsets read once, the gradient written once; one comparison for each element."""
    elements = torch.Size(size).numel()
    return Cost(bytes=grad.nbytes + offsets.nbytes + elements * grad.element_size(), flops=elements)


def gradient_magnitude(grad: Tensor, *rest: Any) -> Tensor:
    """Return the reference's result, since it never rounds."""
    return gradient(grad, *rest)


def _offsets(size: tuple[int, ...]) -> Sketch:
    """Describe offsets: in each channel, one pixel."""
    return rand(*size[:-2], 1, 1, low=0, high=size[-2] * size[-1], dtype=torch.int32)


def sketches(grad: Any, offsets: Any, size: Any, memory_format: Any) -> dict[str, Sketch]:
    """Return the sketch of valid offsets."""
    return {"offsets": _offsets(size)}


def _sample(name: str, size: tuple[int, ...], *tags: str, last: bool = False, **how: Any) -> Sample:
    form = {"memory_format": torch.channels_last} if last else {}
    return Sample(
        name, (rand(*size[:-2], 1, 1, **how), _offsets(size), size), form, frozenset(tags or ("edge",))
    )


GRADIENT_SAMPLES = (
    _sample("head", (3, 5, 7, 9), "smoke"),
    _sample("channels_last", (2, 12, 7, 6), "smoke", last=True),
    _sample("nan", (2, 6, 5, 4), "smoke", values="nan"),
    _sample("one_plane", (9, 8, 9)),
    _sample("one_pixel", (2, 3, 1, 1)),
    _sample("no_images", (0, 3, 6, 6), "degenerate"),
    _sample("odd_channels_last", (3, 13, 3, 5), last=True),
    _sample("one_image_channels_last", (1, 40, 9, 15), last=True),
    _sample("planes_of_vectors", (2, 3, 8, 16)),
    _sample("gaps_in_memory", (2, 5, 3, 4), layout="strided"),
    _sample("stride_zero_grad", (3, 8, 6, 8), last=True, layout="expanded"),
    _sample("gradient_of_a_sum", (3, 2, 6, 8), layout="repeated"),
    _sample("cifar", (64, 256, 8, 8), "bench"),
    _sample("cifar_early", (64, 64, 32, 32), "bench"),
    _sample("imagenet", (32, 1280, 7, 7), "bench"),
    _sample("imagenet_channels_last", (32, 1280, 7, 7), "bench", last=True),
    _sample("imagenet_early", (256, 64, 56, 56), "bench", "huge"),
    _sample("imagenet_early_channels_last", (256, 64, 56, 56), "bench", "huge", last=True),
)

_GRAD, _TAPS = rand(1, 2, 1, 1), _offsets((1, 2, 4, 4))

GRADIENT_ERRORS = (
    ErrorCase(
        "places", (_GRAD, rand(1, 2, 2, 1, dtype=torch.int32), (1, 2, 4, 4)), match="offsets must have"
    ),
    ErrorCase(
        "dtype",
        (_GRAD, rand(1, 2, 1, 1, dtype=torch.int64), (1, 2, 4, 4)),
        match="offsets must have dtype torch.int32, got torch.int64",
    ),
    ErrorCase(
        "memory_format",
        (_GRAD, _TAPS, (1, 2, 4, 4)),
        match="memory_format must be contiguous_format or channels_last",
        kwargs={"memory_format": torch.preserve_format},
    ),
    ErrorCase("rank", (_GRAD, _TAPS, (4, 4)), match=r"size must be \(C, H, W\) or \(N, C, H, W\)"),
)

BACKWARD = backward_of(
    SPEC,
    gradient,
    params=(Param("offsets", "tensor"), IMAGE_SIZE, MEMORY_FORMAT),
    check=gradient_check,
    shape=lambda offsets, size, form: each_channel(size),
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    given=lambda sample: None,  # only shapes matter, and where the offsets point
    samples=GRADIENT_SAMPLES,
    errors=GRADIENT_ERRORS,
    terms=lambda *args: 1,
    exact=True,
    idioms=MappingProxyType({"by_scattering": by_scattering}),
    sketches=sketches,
    outputs=gradient_outputs,
    ways=lambda grad, *_: tuple(Way((d, d), d, audits=True) for d in range(grad.ndim - 2)),
)
