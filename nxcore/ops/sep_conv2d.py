"""sep_conv2d: ReLU, a depthwise convolution and a 1x1 convolution of an image.

    u[n, c, i, j]   = sum over taps (a, b) on the image of dw_weight[c, 0, a, b] * relu(x[n, c, row, column])
    out[n, o, i, j] = sum over c of pw_weight[o, c, 0, 0] * u[n, c, i, j]
    with row = i * stride - padding + a * dilation, column = j * stride - padding + b * dilation

The intermediate ``u`` is never rounded to 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.depthwise_conv2d import check as check_depthwise
from nxcore.ops.depthwise_conv2d import reference as depthwise
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
    dense,
    laid_out,
    memory_format,
    rand,
    require_flag,
    require_tensor,
    window_of,
)


def reference(
    x: Tensor,
    dw_weight: Tensor,
    pw_weight: Tensor,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    relu: bool = True,
) -> Tensor:
    """Return ReLU, depthwise convolution and 1x1 convolution, all in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W) or (C, H, W).
    dw_weight : Tensor
        Shape (C, 1, kernel height, kernel width), dtype of ``x``.
    pw_weight : Tensor
        Shape (channels out, C, 1, 1), dtype of ``x``.
    stride : int or (int, int), default 1
        The step from window to window.
    padding : int, (int, int), "valid" or "same", default 0
        Zeros on each side.
    dilation : int or (int, int), default 1
        The step from tap to tap.
    relu : bool, default True
        Whether negative elements of ``x`` count as zero.

    Returns
    -------
    Tensor
        Shape (N, channels out, H', W') or (channels out, H', W'), dtype and memory format of ``x``.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't an image, a weight doesn't fit it, or an argument is out of range.

    Examples
    --------
    >>> x, dw_weight, pw_weight = torch.ones(2, 3, 3), torch.ones(2, 1, 3, 3), torch.ones(1, 2, 1, 1)
    >>> nxcore.ops.sep_conv2d(x, dw_weight, pw_weight)
    tensor([[[18.]]])
    """
    if lower := lowered(x):
        with torch.autocast(x.device.type, enabled=False):  # otherwise the intermediate would be rounded
            given = (x.to(lower), dw_weight.to(lower), pw_weight.to(lower))
            return reference(*given, stride, padding, dilation, relu)
    return convolved(x, dw_weight, pw_weight, stride, padding, dilation, relu).to(x.dtype)


def lowered(x: Tensor) -> torch.dtype | None:
    """Return the dtype that autocast gives a convolution of ``x``; None where it changes nothing."""
    device = x.device.type
    on = device in LOWER and torch.is_autocast_enabled(device) and x.dtype is not torch.float64
    return torch.get_autocast_dtype(device) if on else None


def convolved(
    x: Tensor, dw_weight: Tensor, pw_weight: Tensor, stride: Any, padding: Any, dilation: Any, relu: bool
) -> Tensor:
    """Return the result before rounding to 16 bits, in the memory format of ``x``."""
    image, filters, points = wide(x), wide(dw_weight), wide(pw_weight)
    image = functional.relu(image) if relu else image
    middle = depthwise(image, filters, stride, padding, dilation)
    out = functional.conv2d(middle, points) if exact(middle) else pointwise(middle, points.flatten(1))
    return dense(out, memory_format(x))


def wide(x: Tensor) -> Tensor:
    """Return ``x`` in float32 where it has 16 bits."""
    return x.float() if x.dtype.itemsize < 4 else x


def exact(u: Tensor) -> bool:
    """Return whether torch's conv2d avoids TF32; then one call replaces several of the matrix product."""
    return u.is_cuda and not torch.compiler.is_compiling() and not torch.backends.cudnn.allow_tf32


def pointwise(u: Tensor, weight: Tensor) -> Tensor:
    """Return a 1x1 convolution as a matrix product; by default, torch uses TF32 in conv2d, not in matmul."""
    if memory_format(u) is torch.channels_last:
        return functional.linear(u.movedim(-3, -1), weight).movedim(-1, -3)
    flat = u.flatten(-2)
    matrix = weight if flat.ndim == 2 else weight.expand(flat.shape[0], *weight.shape)
    out: Tensor = (matrix @ flat).unflatten(-1, u.shape[-2:])
    return out


def check(
    x: Any, dw_weight: Any, pw_weight: Any, stride: Any, padding: Any, dilation: Any, relu: Any
) -> None:
    """Raise unless the operator is defined for the arguments."""
    try:
        check_depthwise(x, dw_weight, stride, padding, dilation)
    except InvalidInputError as error:
        if error.argument != "weight":
            raise
        raise InvalidInputError(f"dw_{error}", argument="dw_weight") from None
    require_tensor(pw_weight, "pw_weight")
    channels, shape = x.shape[-3], tuple(pw_weight.shape)
    if len(shape) != 4 or shape[1:] != (channels, 1, 1) or 0 in shape:
        raise InvalidInputError(
            f"pw_weight must be (channels out, {channels}, 1, 1) for x of {channels} channels, got {shape}",
            argument="pw_weight",
        )
    for attribute in ("dtype", "device"):
        wanted, got = getattr(x, attribute), getattr(pw_weight, attribute)
        if wanted != got:
            raise InvalidInputError(
                f"pw_weight must have the {attribute} of x, {wanted}, got {got}", argument="pw_weight"
            )
    require_flag(relu, "relu")


def out_shape(x: Any, dw_weight: Any, pw_weight: Any, *window: Any) -> tuple[int, ...]:
    """Return the result's shape."""
    return (*x.shape[:-3], pw_weight.shape[0], *window_of(x, dw_weight, *window).outputs)


def outputs(x: Any, dw_weight: Any, pw_weight: Any, *rest: Any) -> TensorMeta:
    """Describe the result."""
    shape = out_shape(x, dw_weight, pw_weight, *rest[:3])
    return laid_out(shape, memory_format(x), x.dtype, x.device)


def cost(x: Any, dw_weight: Any, pw_weight: Any, *rest: Any) -> Cost:
    """Count x and the weights read once, the result written once; two operations for each term."""
    taps = window_of(x, dw_weight, *rest[:3]).taps
    channels, made = x.shape[-3], torch.Size(out_shape(x, dw_weight, pw_weight, *rest[:3])).numel()
    between = made // pw_weight.shape[0] * channels
    moved = x.nbytes + dw_weight.nbytes + pw_weight.nbytes + made * x.element_size()
    return Cost(bytes=moved, flops=2 * between * taps + 2 * made * channels)


def magnitude(x: Tensor, dw_weight: Tensor, pw_weight: Tensor, *rest: Any) -> Tensor:
    """Return the operator on absolute values."""
    *window, relu = rest
    image = functional.relu(x) if relu else x.abs()
    return reference(image, dw_weight.abs(), pw_weight.abs(), *(*window, False))


def terms(x: Any, dw_weight: Any, *rest: Any) -> int:
    """Return the number of channels times that of taps."""
    return int(dw_weight.numel())


def ways(x: Any, *rest: Any) -> tuple[Way, ...]:
    """Divide by image, with the same weights."""
    return tuple(Way((d, None, None), d) for d in range(x.ndim - 3))


def _backward(
    grad: Any, mask: tuple[bool, ...], x: Any, dw_weight: Any, pw_weight: Any, *rest: Any
) -> tuple[Any, ...]:
    return grad, x, dw_weight, pw_weight, *rest, mask


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})
PLAIN = {"relu": False}

SAMPLES = (
    Sample("three", (rand(2, 3, 9, 11), rand(3, 1, 3, 3), rand(5, 3, 1, 1), 1, 1), tags=SMOKE),
    Sample("dilated_five", (rand(2, 5, 6, 9), rand(5, 1, 5, 5), rand(3, 5, 1, 1), 1, 4, 2), tags=SMOKE),
    Sample("strided", (rand(2, 4, 7, 8), rand(4, 1, 3, 3), rand(6, 4, 1, 1), 2, 1), tags=SMOKE),
    Sample(
        "channels_last",
        (rand(2, 4, 5, 6, layout="channels_last"), rand(4, 1, 3, 3), rand(4, 4, 1, 1), 1, 1),
        tags=SMOKE,
    ),
    Sample("nan", (rand(2, 2, 3, 14, values="nan"), rand(2, 1, 3, 3), rand(3, 2, 1, 1), 1, 1), tags=SMOKE),
    Sample("negative_counts", (rand(1, 3, 5, 6), rand(3, 1, 3, 3), rand(2, 3, 1, 1), 1, 1), PLAIN),
    Sample("strided_and_dilated", (rand(1, 3, 9, 10), rand(3, 1, 5, 5), rand(4, 3, 1, 1), 2, 4, 2)),
    Sample("seven_same", (rand(1, 2, 8, 9), rand(2, 1, 7, 7), rand(3, 2, 1, 1), 1, "same")),
    Sample("no_padding", (rand(1, 2, 6, 7), rand(2, 1, 3, 3), rand(2, 2, 1, 1))),
    Sample("more_padding_than_filter", (rand(1, 2, 4, 5), rand(2, 1, 3, 3), rand(2, 2, 1, 1), 1, 4)),
    Sample("rectangle", (rand(1, 2, 7, 9), rand(2, 1, 3, 4), rand(3, 2, 1, 1), (2, 1), (0, 2), (1, 2))),
    Sample("stride_of_three", (rand(1, 2, 8, 9), rand(2, 1, 3, 3), rand(3, 2, 1, 1), 3, 1)),
    Sample("filter_of_one", (rand(2, 3, 4, 5), rand(3, 1, 1, 1), rand(2, 3, 1, 1))),
    Sample("one_plane", (rand(3, 6, 5), rand(3, 1, 3, 3), rand(4, 3, 1, 1), 1, 1)),
    Sample("one_channel", (rand(2, 1, 5, 6), rand(1, 1, 3, 3), rand(1, 1, 1, 1), 1, 1)),
    Sample("many_channels", (rand(2, 37, 4, 4), rand(37, 1, 3, 3), rand(70, 37, 1, 1), 1, 1)),
    Sample("square_planes", (rand(2, 64, 8, 8), rand(64, 1, 3, 3), rand(64, 64, 1, 1), 1, 1)),
    Sample(
        "square_planes_of_16_channels", (rand(1, 16, 32, 32), rand(16, 1, 3, 3), rand(16, 16, 1, 1), 1, 1)
    ),
    Sample("square_planes_dilated", (rand(1, 32, 16, 16), rand(32, 1, 5, 5), rand(32, 32, 1, 1), 1, 4, 2)),
    Sample(
        "square_planes_of_36_channels", (rand(1, 36, 32, 32), rand(36, 1, 5, 5), rand(36, 36, 1, 1), 1, 2)
    ),
    Sample(
        "square_planes_of_72_channels", (rand(1, 72, 16, 16), rand(72, 1, 3, 3), rand(72, 72, 1, 1), 1, 2, 2)
    ),
    Sample(
        "square_planes_of_144_channels", (rand(1, 144, 8, 8), rand(144, 1, 3, 3), rand(144, 144, 1, 1), 1, 1)
    ),
    Sample("square_planes_strided", (rand(2, 64, 16, 16), rand(64, 1, 3, 3), rand(64, 64, 1, 1), 2, 1)),
    Sample(
        "square_planes_strided_of_32_channels",
        (rand(1, 32, 32, 32), rand(32, 1, 5, 5), rand(32, 32, 1, 1), 2, 4, 2),
    ),
    Sample(
        "square_planes_strided_of_72_channels",
        (rand(1, 72, 32, 32), rand(72, 1, 3, 3), rand(72, 72, 1, 1), 2, 1),
    ),
    Sample(
        "square_planes_strided_of_144_channels",
        (rand(1, 144, 16, 16), rand(144, 1, 5, 5), rand(144, 144, 1, 1), 2, 2),
    ),
    Sample(
        "square_planes_nan",
        (rand(1, 64, 8, 8, values="lone_nan"), rand(64, 1, 3, 3), rand(64, 64, 1, 1), 1, 1),
    ),
    Sample("no_images", (rand(0, 3, 6, 6), rand(3, 1, 3, 3), rand(2, 3, 1, 1)), tags=DEGENERATE),
    Sample(
        "gaps_in_memory",
        (rand(1, 2, 5, 8, layout="strided"), rand(2, 1, 3, 3), rand(3, 2, 1, 1, layout="transposed"), 1, 1),
    ),
    Sample(
        "odd_storage_offset",
        (rand(1, 4, 8, 8, layout="sliced"), rand(4, 1, 3, 3, layout="sliced"), rand(4, 4, 1, 1), 1, 1),
    ),
    Sample("transposed", (rand(2, 3, 4, 5, layout="transposed"), rand(3, 1, 3, 3), rand(2, 3, 1, 1), 1, 1)),
    Sample("expanded", (rand(3, 2, 4, 6, layout="expanded"), rand(2, 1, 3, 3), rand(2, 2, 1, 1), 1, 1)),
    *(
        Sample(
            f"darts_{side}_k{k}{f'_dilation{d}' * (d > 1)}",
            (rand(64, c, side, side), rand(c, 1, k, k), rand(c, c, 1, 1), 1, d * (k // 2), d),
            tags=BENCH,
        )
        for c, side in ((16, 32), (64, 8))
        for k, d in ((3, 1), (5, 1), (5, 2))
    ),
    Sample(
        "darts_32_k3_stride2",
        (rand(64, 32, 32, 32), rand(32, 1, 3, 3), rand(32, 32, 1, 1), 2, 1),
        tags=BENCH,
    ),
)

X, DW, PW = rand(1, 2, 4, 4), rand(2, 1, 3, 3), rand(3, 2, 1, 1)

ERRORS = (
    ErrorCase("rank", (rand(3, 4), DW, PW), match=r"x must be \(C, H, W\) or \(N, C, H, W\) .* got \(3, 4\)"),
    ErrorCase(
        "filters", (X, rand(3, 1, 3, 3), PW), match=r"dw_weight must be \(2, 1, kernel height, kernel width\)"
    ),
    ErrorCase("points", (X, DW, rand(3, 3, 1, 1)), match=r"pw_weight must be \(channels out, 2, 1, 1\)"),
    ErrorCase("points_of_three", (X, DW, rand(3, 2, 3, 3)), match=r"got \(3, 2, 3, 3\)"),
    ErrorCase(
        "dtypes",
        (X, DW, rand(3, 2, 1, 1, dtype=torch.float16)),
        match="pw_weight must have the dtype of x, torch.float32, got torch.float16",
    ),
    ErrorCase(
        "devices",
        (X, rand(2, 1, 3, 3, device="meta"), PW),
        match="dw_weight must have the device of x, cpu, got meta",
    ),
    ErrorCase("stride", (X, DW, PW, 0), match="stride must be at least 1, got 0"),
    ErrorCase("too_small", (rand(1, 2, 2, 2), DW, PW), match="x must be at least as large as"),
    ErrorCase("relu", (X, DW, PW), match="relu must be True or False, got 1", kwargs={"relu": 1}),
    ErrorCase("not_a_tensor", (X, DW, 1.0), match="pw_weight must be a tensor, got float"),
)

SPEC = OpSpec(
    name="sep_conv2d",
    params=(
        Param("x", "tensor"),
        Param("dw_weight", "tensor"),
        Param("pw_weight", "tensor"),
        Param("stride", "static", 1),
        Param("padding", "static", 0),
        Param("dilation", "static", 1),
        Param("relu", "static", True, keyword=True),
    ),
    reference=reference,
    check=check,
    holds="larger",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    outputs=outputs,
    ways=ways,
    gradient=Gradient("sep_conv2d_backward", _backward, saves=("x", "dw_weight", "pw_weight")),
    autocast=LOWER,
)
