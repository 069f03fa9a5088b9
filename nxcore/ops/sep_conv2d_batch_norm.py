"""sep_conv2d_batch_norm: sep_conv2d, then a batch norm in training.

    y = sep_conv2d(x, ...);  out = (y - mean) / sqrt(var + eps) * weight + bias

With ``mean`` and ``var`` of y as in ``batch_norm``. Intermediates are never rounded to 16 bits: ``y`` has
float32 or wider.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.batch_norm import SPEC as BATCH_NORM
from nxcore.ops.batch_norm import accumulator, require_channels, require_eps, require_factors, values
from nxcore.ops.batch_norm import reference as normalised
from nxcore.ops.sep_conv2d import SPEC as SEP_CONV2D
from nxcore.ops.sep_conv2d import check as check_sep_conv2d
from nxcore.ops.sep_conv2d import convolved, lowered
from nxcore.plugin import (
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    Layout,
    OpSpec,
    Param,
    Parts,
    Problem,
    Sample,
    TensorMeta,
    laid_out,
    memory_format,
    rand,
)

Call = Callable[..., Any]
DIMS = (0, 2, 3)
WINDOW = 7  # x, both weights, and the window's arguments


def reference(
    x: Tensor,
    dw_weight: Tensor,
    pw_weight: Tensor,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    relu: bool = True,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ReLU, depthwise convolution, 1x1 convolution and batch norm, and the norm's input.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W).
    dw_weight, pw_weight, stride, padding, dilation, relu
        As in ``sep_conv2d``.
    weight, bias : Tensor, optional
        (channels out,), with the dtype of ``x`` or float32; both or neither.
    eps : float, default 1e-5
        Added to the variance; positive.

    Returns
    -------
    out : Tensor
        Shape (N, channels out, H', W'), dtype and memory format of ``x``.
    y : Tensor
        The norm's input, in float32 or wider; without a gradient, as ``mean`` and ``var``.
    mean, var : Tensor
        (channels out,), as ``batch_norm`` returns them for ``y``.

    Raises
    ------
    InvalidInputError
        As ``sep_conv2d`` and ``batch_norm``.

    Examples
    --------
    >>> x, weight = torch.arange(4.0).view(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
    >>> out, y, mean, var = nxcore.ops.sep_conv2d_batch_norm(x, weight, weight)
    >>> mean
    tensor([1.5000])
    """
    if lower := lowered(x):  # only of the convolutions: torch's batch norm takes factors unchanged
        with torch.autocast(x.device.type, enabled=False):
            given = (x.to(lower), dw_weight.to(lower), pw_weight.to(lower))
            return reference(*given, stride, padding, dilation, relu, weight, bias, eps)
    y = convolved(x, dw_weight, pw_weight, stride, padding, dilation, relu)
    out, mean, var = normalised(y, weight, bias, eps)
    return out.to(x.dtype), y.detach(), mean, var


def between(x: Any, dw_weight: Any, pw_weight: Any, *window: Any) -> TensorMeta:
    """Describe the norm's input."""
    made = SEP_CONV2D.outputs(x, dw_weight, pw_weight, *window)
    return TensorMeta(made.shape, made.strides, accumulator(x), made.device)


def check_convolution(x: Any, *rest: Any) -> None:
    """Raise unless a batch norm fits the convolution's result."""
    check_sep_conv2d(x, *rest)
    if x.ndim != 4:
        raise InvalidInputError(f"x must be (N, C, H, W), got {tuple(x.shape)}", argument="x")
    require_channels(SEP_CONV2D.outputs(x, *rest))


def check(*args: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    *_, weight, bias, eps = args
    check_convolution(*args[:WINDOW])
    require_factors(SEP_CONV2D.outputs(*args[:WINDOW]), weight, bias)
    require_eps(eps)


def outputs(*args: Any) -> tuple[TensorMeta, ...]:
    """Describe the results."""
    x, y = args[0], between(*args[:WINDOW])
    statistic = TensorMeta((y.shape[1],), (1,), y.dtype, y.device)
    return laid_out(y.shape, memory_format(x), x.dtype, x.device), y, statistic, statistic


def cost(*args: Any) -> Cost:
    """Count x and the weights read once, all results written once."""
    *_, weight, bias, _ = args
    factors = sum(t.nbytes for t in (weight, bias) if t is not None)
    convolution, made = SEP_CONV2D.cost(*args[:WINDOW]), outputs(*args)
    moved = convolution.bytes + sum(t.nbytes for t in made[1:]) + factors  # the first is included already
    return Cost(bytes=moved, flops=convolution.flops + 6 * made[0].numel())


def magnitude(*args: Any) -> tuple[Tensor, ...]:
    """Return the scales: of y, from absolute values; of the others, batch_norm's plus the effect of y's."""
    *_, weight, bias, eps = args
    scale, (_, y, mean, var) = SEP_CONV2D.magnitude(*args[:WINDOW]), reference(*args)
    shape, count = (1, -1, 1, 1), values(y)
    root = torch.rsqrt(var * ((count - 1) / count) + eps)
    z = (y - mean.view(shape)).abs() * root.view(shape)
    of_mean, of_var = scale.mean(DIMS), 2 * var.sqrt() * scale.square().mean(DIMS).sqrt()
    shared = of_mean.view(shape) + z * (z * scale).mean(DIMS, keepdim=True)
    of_out = (scale + shared) * (root if weight is None else root * weight.abs()).view(shape)
    own, *statistics = BATCH_NORM.magnitude(y, weight, bias, eps)
    return own + of_out, scale, statistics[0] + of_mean, statistics[1] + of_var


def terms(*args: Any) -> int:
    """Return the terms of an element of y, plus those of a channel."""
    return SEP_CONV2D.terms(*args[:WINDOW]) + values(between(*args[:WINDOW]))


def _backward(grad: Any, mask: tuple[bool, ...], *args: Any) -> tuple[Any, ...]:
    x, dw_weight, pw_weight, stride, padding, dilation, relu, weight, _, eps, y, mean, var = args
    wanted = (*mask, False, False)[:5]
    window = (stride, padding, dilation, relu)
    return grad, x, dw_weight, pw_weight, y, mean, var, weight, *window, eps, wanted


def _split(problem: Problem) -> tuple[Problem, Problem]:
    """Return the problems of sep_conv2d and batch_norm that a call in float32 consists of."""
    convolution = Problem(SEP_CONV2D, problem.args[:WINDOW])
    return convolution, Problem(BATCH_NORM, (convolution.outputs, *problem.args[WINDOW:]))


def _join(problem: Problem, convolve: Call, normalise: Call) -> Call:
    """Run both in sequence."""

    def call(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y = convolve(*args[:WINDOW])
        out, mean, var = normalise(y, *args[WINDOW:])
        return out, y, mean, var

    return call


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})
LAYOUTS: dict[str, Layout] = {"gaps_in_memory": "strided", "transposed": "transposed", "expanded": "expanded"}

LAID_OUT = tuple(
    Sample(name, (rand(2, 2, 4, 5, layout=layout), rand(2, 1, 3, 3), rand(3, 2, 1, 1), 1, 1))
    for name, layout in LAYOUTS.items()
)
THREE = (rand(2, 3, 5, 6), rand(3, 1, 3, 3), rand(4, 3, 1, 1), 1, 1)

SAMPLES = (
    Sample("three", THREE, tags=SMOKE),
    Sample("affine", THREE, {"weight": rand(4), "bias": rand(4)}, tags=SMOKE),
    Sample(
        "channels_last",
        (rand(2, 2, 4, 5, layout="channels_last"), rand(2, 1, 3, 3), rand(3, 2, 1, 1), 2, 1),
    ),
    Sample("square_planes", (rand(2, 64, 8, 8), rand(64, 1, 3, 3), rand(64, 64, 1, 1), 1, 1)),
    Sample(
        "square_planes_of_16_channels", (rand(1, 16, 32, 32), rand(16, 1, 3, 3), rand(16, 16, 1, 1), 1, 1)
    ),
    Sample(
        "square_planes_of_36_channels", (rand(1, 36, 32, 32), rand(36, 1, 3, 3), rand(36, 36, 1, 1), 1, 1)
    ),
    Sample("square_planes_strided", (rand(2, 64, 16, 16), rand(64, 1, 3, 3), rand(64, 64, 1, 1), 2, 1)),
    Sample(
        "square_planes_strided_of_32_channels",
        (rand(1, 32, 32, 32), rand(32, 1, 5, 5), rand(32, 32, 1, 1), 2, 4, 2),
    ),
    Sample("large_eps", (rand(3, 2, 6, 6), rand(2, 1, 3, 3), rand(2, 2, 1, 1), 1, 2, 2, False), {"eps": 3.0}),
    *LAID_OUT,
    *(
        Sample(
            f"darts_{side}_k{k}{f'_dilation{d}' * (d > 1)}",
            (rand(64, c, side, side), rand(c, 1, k, k), rand(c, c, 1, 1), 1, d * (k // 2), d),
            tags=BENCH,
        )
        for c, side in ((16, 32), (32, 16), (64, 8))
        for k, d in ((3, 1), (5, 2))
    ),
)

X, DW, PW = rand(2, 2, 4, 4), rand(2, 1, 3, 3), rand(3, 2, 1, 1)

ERRORS = (
    ErrorCase("rank", (rand(2, 4, 4), DW, PW), match=r"x must be \(N, C, H, W\), got \(2, 4, 4\)"),
    ErrorCase("points", (X, DW, rand(3, 3, 1, 1)), match=r"pw_weight must be \(channels out, 2, 1, 1\)"),
    ErrorCase("one_value", (rand(1, 2, 3, 3), DW, PW), match="Expected more than 1 value per channel"),
    ErrorCase(
        "weight",
        (X, DW, PW),
        match=r"weight must be \(3,\), got \(2,\)",
        kwargs={"weight": rand(2), "bias": rand(3)},
    ),
    ErrorCase("no_bias", (X, DW, PW), match="weight needs a bias", kwargs={"weight": rand(3)}),
    ErrorCase("eps", (X, DW, PW), match="eps must be a positive number, got 0", kwargs={"eps": 0}),
)

SPEC = OpSpec(
    name="sep_conv2d_batch_norm",
    params=(
        Param("x", "tensor"),
        Param("dw_weight", "tensor"),
        Param("pw_weight", "tensor"),
        Param("stride", "static", 1),
        Param("padding", "static", 0),
        Param("dilation", "static", 1),
        Param("relu", "static", True),
        Param("weight", "tensor", None),
        Param("bias", "tensor", None),
        Param("eps", "static", 1e-5),
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
    whole="each result depends on all images, by the statistics of a channel",
    parts=Parts(("sep_conv2d", "batch_norm"), _split, _join),
    gradient=Gradient(
        "sep_conv2d_batch_norm_backward",
        _backward,
        saves=("x", "dw_weight", "pw_weight", "weight"),
        keeps=True,
    ),
)
