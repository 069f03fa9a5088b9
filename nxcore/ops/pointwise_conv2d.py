"""pointwise_conv2d: 1x1 convolutions of an image, after an optional ReLU, side by side.

    out[n, o, i, j] = sum over c of weight[o, c, 0, 0] * a(x[n, c, i * stride, j * stride])
    out[n, O + o, i, j] = sum over c of shifted[o, c, 0, 0] * a(x[n, c, i * stride + 1, j * stride + 1])
    with O the channels of the first, and a the identity or ReLU

With both, it is what DARTS calls a factorized reduction: Liu, Simonyan, Yang 2019, arXiv:1806.09055. Kernels
are strict: in float32 each term is rounded once.
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
    brief,
    dense,
    laid_out,
    memory_format,
    rand,
    require_flag,
    require_image,
    require_tensor,
)


def reference(
    x: Tensor, weight: Tensor, shifted: Tensor | None = None, stride: int = 1, relu: bool = False
) -> Tensor:
    """Return the 1x1 convolutions, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W).
    weight : Tensor
        Shape (channels out, C, 1, 1), dtype of ``x``.
    shifted : Tensor, optional
        Shape (more channels out, C, 1, 1), dtype of ``x``: filters over the image without its first row and
        its first column. Both images must have results of one size.
    stride : int, default 1
        The step from pixel to pixel, down and across.
    relu : bool, default False
        Whether negative elements of ``x`` count as zero.

    Returns
    -------
    Tensor
        Shape (N, channels out, H', W'), dtype and memory format of ``x``. The channels of ``shifted`` follow
        those of ``weight``.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't a batch of images, filters don't fit it, or an argument is out of range.

    Examples
    --------
    >>> x, weight = torch.arange(-2.0, 2).view(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
    >>> nxcore.ops.pointwise_conv2d(x, weight, weight, stride=2).flatten()
    tensor([-2.,  1.])
    """
    image = functional.relu(x) if relu else x
    out = functional.conv2d(image, weight, None, stride)
    if shifted is not None:
        out = torch.cat([out, functional.conv2d(image[:, :, 1:, 1:], shifted, None, stride)], 1)
    return dense(out, memory_format(x))


def check(x: Any, weight: Any, shifted: Any, stride: Any, relu: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x")
    if x.ndim != 4:
        raise InvalidInputError(f"x must be (N, C, H, W), got {tuple(x.shape)}", argument="x")
    require_image(x)
    for name, filters in (("weight", weight), ("shifted", shifted)):
        if filters is not None or name == "weight":
            _require_filters(x, filters, name)
    if type(stride) is not int or not 1 <= stride < 2**31:
        raise InvalidInputError(
            f"stride must be an integer from 1 to {2**31 - 1}, got {brief(stride)}", argument="stride"
        )
    require_flag(relu, "relu")
    if shifted is None:
        return
    for side, n in zip(("height", "width"), x.shape[2:], strict=True):
        if n < 2 or _steps(n, stride) != _steps(n - 1, stride):
            raise InvalidInputError(
                f"shifted needs a {side} of x with as many steps of {stride} from its second pixel, got {n}",
                argument="shifted",
            )


def _require_filters(x: Any, filters: Any, name: str) -> None:
    require_tensor(filters, name)
    channels, shape = x.shape[1], tuple(filters.shape)
    if len(shape) != 4 or shape[1:] != (channels, 1, 1) or 0 in shape:
        raise InvalidInputError(
            f"{name} must be (channels out, {channels}, 1, 1) for x of {channels} channels, got {shape}",
            argument=name,
        )
    for attribute in ("dtype", "device"):
        wanted, got = getattr(x, attribute), getattr(filters, attribute)
        if wanted != got:
            raise InvalidInputError(
                f"{name} must have the {attribute} of x, {wanted}, got {got}", argument=name
            )


def _steps(n: int, stride: int) -> int:
    return (n - 1) // stride + 1


def out_shape(x: Any, weight: Any, shifted: Any, stride: Any, *_: Any) -> tuple[int, ...]:
    """Return the result's shape."""
    made = weight.shape[0] + (0 if shifted is None else shifted.shape[0])
    return (x.shape[0], made, *(_steps(n, stride) for n in x.shape[2:]))


def outputs(x: Any, *rest: Any) -> TensorMeta:
    """Describe the result."""
    return laid_out(out_shape(x, *rest), memory_format(x), x.dtype, x.device)


def read(x: Any, weight: Any, shifted: Any, stride: Any, *_: Any) -> int:
    """Return the number of elements of ``x`` that are terms."""
    shape = out_shape(x, weight, shifted, stride)
    return int(shape[0] * x.shape[1] * shape[2] * shape[3] * (1 if shifted is None else 2))


def cost(x: Any, weight: Any, shifted: Any, *rest: Any) -> Cost:
    """Count what is used of x, and filters, read once, the result written once; two operations a term."""
    made = torch.Size(out_shape(x, weight, shifted, *rest)).numel()
    filters = weight.nbytes + (0 if shifted is None else shifted.nbytes)
    moved = filters + (read(x, weight, shifted, *rest) + made) * x.element_size()
    return Cost(bytes=moved, flops=2 * made * x.shape[1])


def magnitude(x: Tensor, weight: Tensor, shifted: Tensor | None, stride: int, relu: bool) -> Tensor:
    """Return the operator on absolute values."""
    image = functional.relu(x) if relu else x.abs()
    return reference(image, weight.abs(), None if shifted is None else shifted.abs(), stride)


def terms(x: Any, *_: Any) -> int:
    """Return the number of channels."""
    return int(x.shape[1])


def ways(x: Any, weight: Any, shifted: Any, *_: Any) -> tuple[Way, ...]:
    """Divide by image, with the same filters."""
    del x, weight
    return (Way((0, None) if shifted is None else (0, None, None), 0),)


def _backward(grad: Any, mask: tuple[bool, ...], *args: Any) -> tuple[Any, ...]:
    return grad, *args, (*mask, False)[:3]


SMOKE, BENCH, EXACT = frozenset({"smoke"}), frozenset({"bench"}), frozenset({"exact"})
RELU = {"relu": True}

SAMPLES = (
    Sample("three", (rand(2, 3, 5, 7), rand(5, 3, 1, 1)), tags=SMOKE),
    Sample("reduction", (rand(2, 4, 6, 8), rand(3, 4, 1, 1), rand(2, 4, 1, 1), 2), RELU, tags=SMOKE),
    Sample(
        "channels_last",
        (rand(2, 4, 6, 4, layout="channels_last"), rand(3, 4, 1, 1), rand(3, 4, 1, 1), 2),
        RELU,
        tags=SMOKE,
    ),
    Sample("nan", (rand(1, 3, 4, 8, values="nan"), rand(4, 3, 1, 1)), RELU, tags=SMOKE),
    Sample("infinite", (rand(1, 2, 6, 8, values="inf"), rand(3, 2, 1, 1, low=0.5, high=1)), tags=SMOKE),
    Sample(
        "cancelling", (rand(1, 5, 4, 6, values="cancelling"), rand(3, 5, 1, 1, low=1, high=1)), tags=EXACT
    ),
    # Whole vectors, several tiles of channels, and channels that several warps share.
    Sample("square_planes", (rand(3, 37, 8, 8), rand(21, 37, 1, 1)), RELU),
    Sample("square_planes_negative", (rand(2, 16, 8, 8), rand(16, 16, 1, 1))),
    Sample("many_channels", (rand(1, 130, 8, 8), rand(66, 130, 1, 1)), RELU),
    Sample("many_pixels", (rand(9, 17, 16, 16), rand(16, 17, 1, 1)), RELU),
    Sample("square_reduction", (rand(2, 20, 16, 16), rand(17, 20, 1, 1), rand(9, 20, 1, 1), 2), RELU),
    Sample("square_reduction_negative", (rand(1, 32, 8, 16), rand(16, 32, 1, 1), rand(16, 32, 1, 1), 2)),
    Sample("strided", (rand(2, 5, 16, 16), rand(8, 5, 1, 1), None, 2), RELU),
    Sample("lone_nan", (rand(1, 8, 8, 8, values="lone_nan"), rand(8, 8, 1, 1), rand(8, 8, 1, 1), 2), RELU),
    Sample("strided_odd", (rand(2, 3, 7, 5), rand(4, 3, 1, 1), None, 2)),
    Sample("stride_of_three", (rand(1, 3, 8, 6), rand(4, 3, 1, 1), rand(2, 3, 1, 1), 3)),
    Sample("stride_past_the_image", (rand(2, 3, 3, 4), rand(4, 3, 1, 1), rand(1, 3, 1, 1), 9), RELU),
    Sample("one_channel", (rand(2, 1, 4, 6), rand(1, 1, 1, 1))),
    Sample("one_pixel", (rand(2, 3, 1, 1), rand(4, 3, 1, 1)), RELU),
    Sample("one_row", (rand(2, 3, 1, 8), rand(4, 3, 1, 1))),
    Sample("one_column", (rand(2, 3, 8, 1), rand(4, 3, 1, 1))),
    Sample("no_images", (rand(0, 3, 6, 6), rand(2, 3, 1, 1)), tags=DEGENERATE),
    Sample(
        "odd_storage_offset", (rand(1, 4, 8, 8, layout="sliced"), rand(4, 4, 1, 1, layout="sliced")), RELU
    ),
    Sample(
        "gaps_in_memory", (rand(1, 2, 6, 8, layout="strided"), rand(3, 2, 1, 1, layout="transposed"), None, 2)
    ),
    Sample("transposed", (rand(2, 3, 4, 6, layout="transposed"), rand(2, 3, 1, 1)), RELU),
    Sample("expanded", (rand(3, 2, 4, 6, layout="expanded"), rand(2, 2, 1, 1), rand(2, 2, 1, 1), 2)),
    *(
        Sample(f"darts_{side}_from_{c}", (rand(64, c, side, side), rand(made, c, 1, 1)), RELU, tags=BENCH)
        for c, made, side in ((48, 16, 32), (64, 32, 32), (128, 32, 16), (256, 64, 8))
    ),
    *(
        Sample(
            f"darts_reduction_{side}_from_{c}",
            (rand(64, c, side, side), rand(made, c, 1, 1), rand(made, c, 1, 1), 2),
            RELU,
            tags=BENCH,
        )
        for c, made, side in ((32, 16, 32), (64, 32, 16))
    ),
)

X, W = rand(1, 2, 4, 4), rand(3, 2, 1, 1)

ERRORS = (
    ErrorCase("rank", (rand(2, 4, 4), W), match=r"x must be \(N, C, H, W\), got \(2, 4, 4\)"),
    ErrorCase(
        "filters",
        (X, rand(3, 3, 1, 1)),
        match=r"weight must be \(channels out, 2, 1, 1\) for x of 2 channels, got \(3, 3, 1, 1\)",
    ),
    ErrorCase("filters_of_three", (X, rand(3, 2, 3, 3)), match=r"got \(3, 2, 3, 3\)"),
    ErrorCase("shifted", (X, W, rand(3, 1, 1, 1), 2), match=r"shifted must be \(channels out, 2, 1, 1\)"),
    ErrorCase("shifted_unstrided", (X, W, W), match="shifted needs a height of x .* of 1 from .* got 4"),
    ErrorCase(
        "shifted_odd", (rand(1, 2, 4, 5), W, W, 2), match="shifted needs a width of x .* of 2 .* got 5"
    ),
    ErrorCase(
        "dtypes",
        (X, rand(3, 2, 1, 1, dtype=torch.float16)),
        match="weight must have the dtype of x, torch.float32, got torch.float16",
    ),
    ErrorCase(
        "devices",
        (X, W, rand(3, 2, 1, 1, device="meta"), 2),
        match="shifted must have the device of x, cpu, got meta",
    ),
    ErrorCase("stride", (X, W, None, 0), match="stride must be an integer from 1 to .* got 0"),
    ErrorCase("strides", (X, W, None, (2, 1)), match=r"stride must be an integer .* got \(2, 1\)"),
    ErrorCase("relu", (X, W), match="relu must be True or False, got 1", kwargs={"relu": 1}),
    ErrorCase("not_a_tensor", (X, 1.0), match="weight must be a tensor, got float"),
)

SPEC = OpSpec(
    name="pointwise_conv2d",
    params=(
        Param("x", "tensor"),
        Param("weight", "tensor"),
        Param("shifted", "tensor", None),
        Param("stride", "static", 1),
        Param("relu", "static", False, keyword=True),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    outputs=outputs,
    ways=ways,
    gradient=Gradient("pointwise_conv2d_backward", _backward, saves=("x", "weight", "shifted")),
    autocast=LOWER,
)
