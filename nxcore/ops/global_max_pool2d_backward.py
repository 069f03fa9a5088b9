"""global_max_pool2d_backward: the gradient of global_max_pool2d, from the positions of the maxima.

    grad_x[n, c, h, w] = grad[n, c] where h * W + w is offsets[n, c], else 0

Each element is written once, as the gradient or 0; the result is not cleared first.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.global_avg_pool2d_backward import require_pooled
from nxcore.plugin import (
    Cost,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    Sketch,
    TensorMeta,
    dense,
    laid_out,
    rand,
    require_memory_format,
    require_tensor,
)


def reference(
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


def check(grad: Any, offsets: Any, size: Any, memory_format: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(grad, "grad")
    require_tensor(offsets, "offsets", floating=False)
    require_pooled(grad, size)
    require_pooled(offsets, size, "offsets")
    require_memory_format(memory_format, len(size))
    if offsets.dtype is not torch.int32:
        raise InvalidInputError(
            f"offsets must have dtype torch.int32, got {offsets.dtype}", argument="offsets"
        )
    if offsets.device != grad.device:
        raise InvalidInputError(f"offsets must be on the device of grad, {grad.device}, got {offsets.device}")


def _outputs(grad: Any, offsets: Any, size: Any, memory_format: Any) -> TensorMeta:
    return laid_out(size, memory_format, grad.dtype, grad.device)


def cost(grad: Any, offsets: Any, size: Any, memory_format: Any) -> Cost:
    """Count grad and the offsets read once, the gradient written once; one comparison for each element."""
    elements = torch.Size(size).numel()
    return Cost(bytes=grad.nbytes + offsets.nbytes + elements * grad.element_size(), flops=elements)


def magnitude(grad: Tensor, *rest: Any) -> Tensor:
    """Return the reference's result, since it never rounds."""
    return reference(grad, *rest)


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


SAMPLES = (
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

ERRORS = (
    ErrorCase("shape", (rand(1, 3, 1, 1), _TAPS, (1, 2, 4, 4)), match=r"grad must have the output's shape"),
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
    ErrorCase("not_a_tensor", (1.0, _TAPS, (1, 2, 4, 4)), match="grad must be a tensor, got float"),
)

SPEC = OpSpec(
    name="global_max_pool2d_backward",
    params=(
        Param("grad", "tensor"),
        Param("offsets", "tensor"),
        Param("size", "size"),
        Param("memory_format", "static", torch.contiguous_format),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda *args: 1,
    exact=True,
    idioms=MappingProxyType({"by_scattering": by_scattering}),
    sketches=sketches,
    outputs=_outputs,
)
