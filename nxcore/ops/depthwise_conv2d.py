"""depthwise_conv2d: each channel of an image convolved with its own filter.

    out[n, c, i, j] = sum over taps (a, b) on the image of weight[c, 0, a, b] * x[n, c, row, column]
    with row = i * stride - padding + a * dilation, column = j * stride - padding + b * dilation

Semantics of ``torch.nn.functional.conv2d`` with one group for each channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.plugin import (
    DEGENERATE,
    LOWER,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    laid_out,
    memory_format,
    rand,
    require_image,
    require_integers,
    require_size,
    require_tensor,
    window_of,
)


def reference(
    x: Tensor,
    weight: Tensor,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
) -> Tensor:
    """Return each channel convolved with its filter, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W) or (C, H, W).
    weight : Tensor
        Shape (C, 1, kernel height, kernel width), dtype of ``x``.
    stride : int or (int, int), default 1
        The step from window to window.
    padding : int, (int, int), "valid" or "same", default 0
        Zeros on each side.
    dilation : int or (int, int), default 1
        The step from tap to tap.

    Returns
    -------
    Tensor
        Shape (N, C, H', W') or (C, H', W'), dtype and memory format as torch's.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't an image, ``weight`` doesn't fit it, or an argument is out of range.

    Examples
    --------
    >>> nxcore.ops.depthwise_conv2d(torch.ones(1, 3, 3), torch.ones(1, 1, 3, 3), padding=1)
    tensor([[[4., 6., 4.],
             [6., 9., 6.],
             [4., 6., 4.]]])
    """
    out = functional.conv2d(x, weight, None, stride, padding, dilation, groups=x.shape[-3])
    # On the meta device, torch loses the memory format that other devices keep.
    return out.contiguous(memory_format=memory_format(x)) if x.is_meta else out


def check(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x")
    require_tensor(weight, "weight")
    require_image(x)
    channels, shape = x.shape[-3], tuple(weight.shape)
    if len(shape) != 4 or shape[:2] != (channels, 1) or 0 in shape:
        raise InvalidInputError(
            f"weight must be ({channels}, 1, kernel height, kernel width) for x of {channels} channels, "
            f"got {shape}",
            argument="weight",
        )
    for attribute in ("dtype", "device"):
        wanted, got = getattr(x, attribute), getattr(weight, attribute)
        if wanted != got:
            raise InvalidInputError(
                f"weight must have the {attribute} of x, {wanted}, got {got}", argument="weight"
            )
    for name, value in (("stride", stride), ("padding", padding), ("dilation", dilation)):
        if not isinstance(value, str) or name != "padding":
            require_integers(value, name)
    outputs = window_of(x, weight, stride, padding, dilation).outputs
    require_size((*x.shape[:-2], *outputs), "the result's size")


def outputs(x: Any, weight: Any, *rest: Any) -> TensorMeta:
    """Describe the result."""
    shape = (*x.shape[:-2], *window_of(x, weight, *rest).outputs)
    return laid_out(shape, memory_format(x), x.dtype, x.device)


def ways(x: Any, *rest: Any) -> tuple[Way, ...]:
    """Divide by image, with the same filters, or by channel."""
    channel = x.ndim - 3
    return (*(Way((d, None), d) for d in range(channel)), Way((channel, 0), channel))


def cost(x: Any, weight: Any, *rest: Any) -> Cost:
    """Count x and the filters read once, the result written once; two operations for each tap."""
    seen = window_of(x, weight, *rest)
    outputs = torch.Size((*x.shape[:-2], *seen.outputs)).numel()
    read = x.nbytes + weight.nbytes
    return Cost(bytes=read + outputs * x.element_size(), flops=2 * outputs * seen.taps)


def magnitude(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """Return the convolution of absolute values."""
    return reference(x.abs(), weight.abs(), *rest)


def terms(x: Any, weight: Any, *rest: Any) -> int:
    """Return the number of taps of the window."""
    return window_of(x, weight, *rest).taps


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, weight: Any, *rest: Any) -> tuple[Any, ...]:
    return grad, x, weight, *rest, (*mask, False)[:2]


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("three", (rand(2, 3, 9, 11), rand(3, 1, 3, 3), 1, 1), tags=SMOKE),
    Sample("dilated_five", (rand(2, 3, 13, 12), rand(3, 1, 5, 5), 1, 4, 2), tags=SMOKE),
    Sample("strided", (rand(2, 3, 8, 10), rand(3, 1, 3, 3), 2, 1), tags=SMOKE),
    Sample("channels_last", (rand(2, 9, 7, 6, layout="channels_last"), rand(9, 1, 3, 3), 1, 1), tags=SMOKE),
    Sample("five", (rand(1, 2, 9, 12), rand(2, 1, 5, 5), 1, 2)),
    Sample("seven", (rand(1, 2, 11, 17), rand(2, 1, 7, 7), 1, 3)),
    Sample("nine", (rand(1, 2, 12, 13), rand(2, 1, 9, 9), 1, 4)),
    Sample("filter_too_large_to_unroll", (rand(1, 2, 13, 14), rand(2, 1, 12, 11), (1, 2), (6, 5))),
    Sample("even", (rand(1, 2, 8, 9), rand(2, 1, 2, 4), 1, 1)),
    Sample("rectangle", (rand(1, 2, 9, 12), rand(2, 1, 3, 5), (2, 1), (0, 2), (1, 2))),
    Sample("dilated_three", (rand(1, 2, 9, 12), rand(2, 1, 3, 3), 1, 2, 2)),
    Sample("strided_five", (rand(1, 2, 11, 12), rand(2, 1, 5, 5), 2, 2)),
    Sample("strided_and_dilated", (rand(1, 2, 11, 12), rand(2, 1, 3, 3), 2, 2, 2)),
    Sample("stride_of_three", (rand(1, 2, 11, 13), rand(2, 1, 3, 3), 3, 1)),
    Sample("no_padding", (rand(1, 2, 8, 9), rand(2, 1, 3, 3))),
    Sample("more_padding_than_filter", (rand(1, 2, 5, 6), rand(2, 1, 3, 3), 1, 4)),
    Sample("same", (rand(1, 2, 8, 9), rand(2, 1, 3, 5), 1, "same")),
    Sample("filter_of_one", (rand(1, 2, 5, 6), rand(2, 1, 1, 1))),
    Sample("one_plane", (rand(3, 9, 8), rand(3, 1, 3, 3), 1, 1)),
    Sample("one_channel", (rand(2, 1, 6, 9), rand(1, 1, 3, 3), 1, 1)),
    Sample("one_pixel", (rand(2, 3, 1, 1), rand(3, 1, 3, 3), 1, 1)),
    Sample("no_images", (rand(0, 3, 6, 6), rand(3, 1, 3, 3)), tags=DEGENERATE),
    Sample("channels_last_dilated", (rand(2, 8, 9, 10, layout="channels_last"), rand(8, 1, 5, 5), 1, 4, 2)),
    Sample("channels_last_strided", (rand(2, 8, 9, 10, layout="channels_last"), rand(8, 1, 3, 3), 2, 1)),
    Sample("channels_last_filter", (rand(2, 8, 9, 10), rand(8, 1, 3, 3, layout="channels_last"), 1, 1)),
    Sample("odd_storage_offset", (rand(1, 2, 8, 12, layout="sliced"), rand(2, 1, 3, 3), 1, 1)),
    Sample("gaps_in_memory", (rand(1, 2, 8, 12, layout="strided"), rand(2, 1, 3, 3), 1, 1)),
    Sample("transposed", (rand(2, 3, 6, 7, layout="transposed"), rand(3, 1, 3, 3), 1, 1)),
    Sample("expanded", (rand(3, 2, 6, 8, layout="expanded"), rand(2, 1, 3, 3), 1, 1)),
    Sample("wide_rows", (rand(1, 1, 5, 133), rand(1, 1, 3, 3), 1, 1)),
    Sample("nan", (rand(2, 4, 9, 8, values="nan"), rand(4, 1, 3, 3), 1, 1), tags=SMOKE),
    Sample("cifar_k3", (rand(64, 16, 32, 32), rand(16, 1, 3, 3), 1, 1), tags=BENCH),
    Sample("cifar_k5", (rand(64, 16, 32, 32), rand(16, 1, 5, 5), 1, 2), tags=BENCH),
    Sample("cifar_k5_dilation2", (rand(64, 16, 32, 32), rand(16, 1, 5, 5), 1, 4, 2), tags=BENCH),
    Sample("cifar_k3_stride2", (rand(64, 16, 32, 32), rand(16, 1, 3, 3), 2, 1), tags=BENCH),
    *(
        Sample(
            f"imagenet_k{k}",
            (rand(128, 64, 56, 56), rand(64, 1, k, k), 1, k // 2),
            tags=BENCH | {"huge"},
        )
        for k in (3, 5, 7)
    ),
    *(
        Sample(
            f"imagenet_k{k}_channels_last{'_dilation2' if d == 2 else ''}",
            (rand(128, 64, 56, 56, layout="channels_last"), rand(64, 1, k, k), 1, d * (k // 2), d),
            tags=BENCH | {"huge"},
        )
        for k, d in ((3, 1), (3, 2), (5, 1))
    ),
)

ERRORS = (
    ErrorCase(
        "rank",
        (rand(3, 4), rand(3, 1, 3, 3)),
        match=r"x must be \(C, H, W\) or \(N, C, H, W\) .* got \(3, 4\)",
    ),
    ErrorCase("filters", (rand(1, 2, 4, 4), rand(3, 1, 3, 3)), match=r"weight must be \(2, 1, kernel height"),
    ErrorCase("multiplier", (rand(1, 2, 4, 4), rand(4, 1, 3, 3)), match=r"got \(4, 1, 3, 3\)"),
    ErrorCase(
        "dtypes",
        (rand(1, 2, 4, 4), rand(2, 1, 3, 3, dtype=torch.float16)),
        match="weight must have the dtype of x, torch.float32, got torch.float16",
    ),
    ErrorCase(
        "devices",
        (rand(1, 2, 4, 4), rand(2, 1, 3, 3, device="meta")),
        match="weight must have the device of x, cpu, got meta",
    ),
    ErrorCase("stride", (rand(1, 2, 4, 4), rand(2, 1, 3, 3), 0), match="stride must be at least 1, got 0"),
    ErrorCase("padding", (rand(1, 2, 4, 4), rand(2, 1, 3, 3), 1, -1), match="padding must be at least 0"),
    ErrorCase("padding_word", (rand(1, 2, 4, 4), rand(2, 1, 3, 3), 1, "full"), match="'valid' or 'same'"),
    ErrorCase(
        "strided_same", (rand(1, 2, 4, 4), rand(2, 1, 3, 3), 2, "same"), match="where padding is 'same'"
    ),
    ErrorCase("too_small", (rand(1, 2, 2, 2), rand(2, 1, 3, 3)), match="x must be at least as large as"),
    ErrorCase(
        "huge_result",
        (rand(1, 2, 4, 4), rand(2, 1, 3, 3), 1, 2**31 - 1),
        match="the result's size must be a tensor's shape",
    ),
    ErrorCase("not_a_tensor", (1.0, rand(2, 1, 3, 3)), match="x must be a tensor, got float"),
)

SPEC = OpSpec(
    name="depthwise_conv2d",
    params=(
        Param("x", "tensor"),
        Param("weight", "tensor"),
        Param("stride", "static", 1),
        Param("padding", "static", 0),
        Param("dilation", "static", 1),
    ),
    reference=reference,
    check=check,
    holds="larger",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    ways=ways,
    outputs=outputs,
    gradient=Gradient("depthwise_conv2d_backward", _backward, saves=("x", "weight")),
    autocast=LOWER,
)
