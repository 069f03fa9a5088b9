"""conv2d: an image convolved with filters over the channels of a group.

    out[n, o, i, j] = bias[o] + sum over channels c of o's group and taps (a, b) on the image of
                      weight[o, c, a, b] * x[n, c, row, column]
    with row = i * stride - padding + a * dilation, column = j * stride - padding + b * dilation

Semantics of ``torch.nn.functional.conv2d``. Kernels are strict: in float32 each term is rounded once.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor, float16, float32
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
    require_image,
    require_integers,
    require_size,
    require_tensor,
    window_of,
)


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Tensor:
    """Return the image convolved with the filters, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W) or (C, H, W).
    weight : Tensor
        Shape (channels out, C / groups, kernel height, kernel width), dtype of ``x``.
    bias : Tensor, optional
        Shape (channels out,), dtype of ``x``.
    stride : int or (int, int), default 1
        The step from window to window.
    padding : int, (int, int), "valid" or "same", default 0
        Zeros on each side.
    dilation : int or (int, int), default 1
        The step from tap to tap.
    groups : int, default 1
        Groups of channels, each convolved with filters of its own.

    Returns
    -------
    Tensor
        Shape (N, channels out, H', W') or (channels out, H', W'), dtype and memory format of ``x``.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't an image, ``weight`` or ``bias`` doesn't fit it, or an argument is out of range.

    Examples
    --------
    >>> nxcore.ops.conv2d(torch.ones(2, 3, 3), torch.ones(1, 2, 3, 3), torch.ones(1), padding=1)
    tensor([[[ 9., 13.,  9.],
             [13., 19., 13.],
             [ 9., 13.,  9.]]])
    """
    out = functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    # torch's devices differ in whether filters in channels_last decide the result's format.
    return dense(out, memory_format(x))


def check(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x")
    require_tensor(weight, "weight")
    require_image(x)
    require_groups(x, weight, groups)
    require_like(weight, x, "weight")
    if bias is not None:
        require_tensor(bias, "bias")
        if tuple(bias.shape) != (wanted := (weight.shape[0],)):
            raise InvalidInputError(f"bias must be {wanted}, got {tuple(bias.shape)}", argument="bias")
        require_like(bias, x, "bias")
    for name, value in (("stride", stride), ("padding", padding), ("dilation", dilation)):
        if not isinstance(value, str) or name != "padding":
            require_integers(value, name)
    require_size(out_shape(x, weight, bias, stride, padding, dilation, groups), "the result's size")


def require_groups(x: Any, weight: Any, groups: Any) -> None:
    """Raise unless ``groups`` divides the channels, and ``weight`` has filters over those of a group."""
    if type(groups) is not int or groups < 1:
        raise InvalidInputError(
            f"groups must be an integer of at least 1, got {brief(groups)}", argument="groups"
        )
    channels, shape = x.shape[-3], tuple(weight.shape)
    if channels % groups:
        raise InvalidInputError(
            f"groups must divide x's {channels} channels, got {groups}", argument="groups"
        )
    if len(shape) != 4 or shape[1] != channels // groups or 0 in shape:
        raise InvalidInputError(
            f"weight must be (channels out, {channels // groups}, kernel height, kernel width) for x of "
            f"{channels} channels in {groups} groups, got {shape}",
            argument="weight",
        )
    if shape[0] % groups:
        raise InvalidInputError(
            f"groups must divide weight's {shape[0]} channels out, got {groups}", argument="groups"
        )


def require_like(value: Any, x: Any, name: str) -> None:
    """Raise unless a tensor has the dtype and device of ``x``."""
    for attribute in ("dtype", "device"):
        wanted, got = getattr(x, attribute), getattr(value, attribute)
        if wanted != got:
            raise InvalidInputError(
                f"{name} must have the {attribute} of x, {wanted}, got {got}", argument=name
            )


def out_shape(
    x: Any, weight: Any, _bias: Any, stride: Any, padding: Any, dilation: Any, *_: Any
) -> tuple[int, ...]:
    """Return the result's shape."""
    return (*x.shape[:-3], weight.shape[0], *window_of(x, weight, stride, padding, dilation).outputs)


def outputs(x: Any, *rest: Any) -> TensorMeta:
    """Describe the result."""
    return laid_out(out_shape(x, *rest), memory_format(x), x.dtype, x.device)


def terms(_x: Any, weight: Any, *rest: Any) -> int:
    """Return the number of channels of a group times that of taps."""
    return math.prod(weight.shape[1:])


def cost(x: Any, weight: Any, bias: Any, *rest: Any) -> Cost:
    """Count tensors read once, the result written once; two operations for each term."""
    made = math.prod(out_shape(x, weight, bias, *rest))
    read = x.nbytes + weight.nbytes + (0 if bias is None else bias.nbytes)
    return Cost(bytes=read + made * x.dtype.itemsize, flops=2 * made * terms(x, weight))


def magnitude(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """Return the operator on absolute values."""
    return reference(x.abs(), weight.abs(), None if bias is None else bias.abs(), *rest)


def ways(x: Any, _weight: Any, bias: Any, *rest: Any) -> tuple[Way, ...]:
    """Divide by image, with the same filters."""
    whole = (None,) if bias is None else (None, None)
    return tuple(Way((d, *whole), d) for d in range(x.ndim - 3))


def _backward(
    grad: Any, mask: tuple[bool, ...], x: Any, weight: Any, _bias: Any, *rest: Any
) -> tuple[Any, ...]:
    return grad, x, weight, *rest, (*mask, False)[:3]


SMOKE, BENCH, EXACT = frozenset({"smoke"}), frozenset({"bench"}), frozenset({"smoke", "exact"})
TINY, HUGE, LARGEST = 2.0**-120, 2.0**100, 3.4028e38

single = partial(rand, dtype=float32)

SAMPLES = (
    Sample("three", (rand(2, 4, 9, 11), rand(8, 4, 3, 3), rand(8), 1, 1), tags=SMOKE),
    Sample("no_bias", (rand(2, 3, 7, 8), rand(5, 3, 5, 5), None, 1, 2), tags=SMOKE),
    Sample("strided", (rand(2, 3, 8, 10), rand(4, 3, 3, 3), rand(4), 2, 1), tags=SMOKE),
    Sample("groups", (rand(2, 6, 7, 9), rand(4, 3, 3, 3), rand(4), 1, 1, 1, 2), tags=SMOKE),
    Sample(
        "channels_last",
        (rand(2, 4, 7, 6, layout="channels_last"), rand(8, 4, 3, 3), rand(8), 1, 1),
        tags=SMOKE,
    ),
    Sample("nan", (rand(1, 2, 12, 14, values="nan"), rand(3, 2, 3, 3), rand(3), 1, 1), tags=SMOKE),
    # What split or shortened factors get wrong: see tests/ops/test_conv2d.py.
    Sample("infinite", (single(1, 2, 6, 9, values="inf"), single(3, 2, 2, 2, low=0.5, high=1)), tags=SMOKE),
    Sample(
        "overflow",
        (single(1, 2, 5, 6, low=3.4e38, high=LARGEST), single(3, 2, 3, 3, low=0, high=1e-3)),
        tags=SMOKE,
    ),
    Sample(
        "tiny",
        (single(1, 2, 5, 6, low=-TINY, high=TINY), single(3, 2, 3, 3, low=-HUGE, high=HUGE)),
        tags=SMOKE,
    ),
    Sample(
        "denormal",
        (single(1, 2, 5, 6, values="denormal"), single(3, 2, 3, 3, low=-HUGE, high=HUGE)),
        tags=SMOKE,
    ),
    Sample(
        "cancelling", (single(1, 5, 4, 6, values="cancelling"), single(3, 5, 1, 1, low=1, high=1)), tags=EXACT
    ),
    Sample("seven", (rand(1, 4, 11, 37), rand(8, 4, 7, 7), None, 1, 3)),
    Sample("rows_of_many_vectors", (rand(1, 2, 5, 133), rand(9, 2, 3, 3), rand(9), 1, 1)),
    Sample("several_tiles", (rand(1, 3, 67, 66), rand(5, 3, 3, 3), rand(5), 1, 1)),
    Sample("odd_channels", (rand(1, 5, 6, 7), rand(11, 5, 3, 3), rand(11), 1, 1)),
    Sample("one_channel_out", (rand(2, 3, 6, 7), rand(1, 3, 3, 3), rand(1), 1, 1)),
    Sample("one_channel_in", (rand(2, 1, 6, 9), rand(4, 1, 5, 5), rand(4), 1, 2)),
    Sample("a_filter_for_each_channel", (rand(1, 4, 6, 7), rand(4, 1, 3, 3), None, 1, 1, 1, 4)),
    Sample("two_filters_for_each_channel", (rand(1, 3, 6, 7), rand(6, 1, 3, 3), rand(6), 1, 1, 1, 3)),
    Sample("many_channels", (rand(1, 33, 5, 6), rand(35, 33, 3, 3), rand(35), 1, 1)),
    Sample("even", (rand(1, 2, 8, 9), rand(3, 2, 2, 4), None, 1, 1)),
    Sample("rectangle", (rand(1, 2, 9, 12), rand(3, 2, 3, 5), rand(3), (2, 1), (0, 2), (1, 2))),
    Sample("dilated", (rand(1, 2, 9, 12), rand(3, 2, 3, 3), rand(3), 1, 2, 2)),
    Sample("strided_and_dilated", (rand(1, 2, 11, 12), rand(3, 2, 3, 3), rand(3), 2, 2, 2)),
    Sample("stride_of_three", (rand(1, 2, 11, 13), rand(3, 2, 3, 3), rand(3), 3, 1)),
    Sample("stride_past_the_filter", (rand(1, 2, 9, 10), rand(3, 2, 2, 2), rand(3), 3)),
    Sample("no_padding", (rand(1, 2, 8, 9), rand(3, 2, 3, 3))),
    Sample("literal_padding", (rand(1, 4, 9, 10), rand(8, 4, 5, 5), rand(8), 1, 1)),
    Sample("more_padding_than_filter", (rand(1, 2, 5, 6), rand(3, 2, 3, 3), rand(3), 1, 4)),
    Sample("same", (rand(1, 2, 8, 9), rand(3, 2, 3, 5), rand(3), 1, "same")),
    Sample("filter_of_one", (rand(1, 4, 5, 6), rand(3, 4, 1, 1), rand(3))),
    Sample("filter_larger_than_seven", (rand(1, 2, 12, 13), rand(3, 2, 9, 8), rand(3), 1, 4)),
    Sample("one_plane", (rand(3, 9, 8), rand(4, 3, 3, 3), rand(4), 1, 1)),
    Sample("one_pixel", (rand(2, 3, 1, 1), rand(4, 3, 3, 3), rand(4), 1, 1)),
    Sample("no_images", (rand(0, 3, 6, 6), rand(4, 3, 3, 3), rand(4)), tags=DEGENERATE),
    Sample(
        "channels_last_strided",
        (rand(2, 4, 9, 10, layout="channels_last"), rand(3, 4, 3, 3), rand(3), 2, 1),
    ),
    Sample(
        "channels_last_filters",
        (rand(2, 4, 8, 9), rand(3, 4, 3, 3, layout="channels_last"), rand(3), 1, 1),
    ),
    Sample("odd_storage_offset", (rand(1, 4, 8, 8, layout="sliced"), rand(4, 4, 3, 3), rand(4), 1, 1)),
    Sample(
        "gaps_in_memory",
        (rand(1, 2, 8, 12, layout="strided"), rand(4, 2, 3, 3, layout="strided"), rand(4), 1, 1),
    ),
    Sample("transposed", (rand(2, 3, 6, 7, layout="transposed"), rand(4, 3, 3, 3), rand(4), 1, 1)),
    Sample("expanded", (rand(3, 2, 6, 8, layout="expanded"), rand(4, 2, 3, 3), rand(4), 1, 1)),
    *(
        Sample(
            f"study_{side}_k{k}",
            (rand(2, 4, side, side), rand(8, 4, k, k), rand(8), 1, k // 2),
            tags=BENCH,
        )
        for side in (32, 64, 128)
        for k in (3, 5, 7)
    ),
    Sample("stem", (rand(32, 3, 32, 32), rand(16, 3, 3, 3), None, 1, 1), tags=BENCH),
    Sample("stem_stride2", (rand(8, 3, 112, 112), rand(16, 3, 3, 3), None, 2, 1), tags=BENCH),
)

X, W = rand(1, 2, 4, 4), rand(3, 2, 3, 3)

ERRORS = (
    ErrorCase("rank", (rand(3, 4), W), match=r"x must be \(C, H, W\) or \(N, C, H, W\) .* got \(3, 4\)"),
    ErrorCase(
        "filters",
        (X, rand(3, 4, 3, 3)),
        match=r"weight must be \(channels out, 2, .* 2 channels in 1 groups, got \(3, 4, 3, 3\)",
    ),
    ErrorCase("no_groups", (X, W), kwargs={"groups": 0}, match="groups must be an integer .* got 0"),
    ErrorCase("groups_in", (X, W), kwargs={"groups": 3}, match="groups must divide x's 2 channels, got 3"),
    ErrorCase(
        "groups_out",
        (X, rand(3, 1, 3, 3)),
        kwargs={"groups": 2},
        match="groups must divide weight's 3 channels out, got 2",
    ),
    ErrorCase("bias", (X, W, rand(2)), match=r"bias must be \(3,\), got \(2,\)"),
    ErrorCase("bias_is_no_tensor", (X, W, 1.0), match="bias must be a tensor, got float"),
    ErrorCase(
        "dtypes", (X, rand(3, 2, 3, 3, dtype=float16)), match="weight must have the dtype of x, .*float16"
    ),
    ErrorCase("bias_dtype", (X, W, rand(3, dtype=float16)), match="bias must have the dtype of x, .*float16"),
    ErrorCase(
        "devices",
        (X, rand(3, 2, 3, 3, device="meta")),
        match="weight must have the device of x, cpu, got meta",
    ),
    ErrorCase("stride", (X, W, None, 0), match="stride must be at least 1, got 0"),
    ErrorCase("padding", (X, W, None, 1, -1), match="padding must be at least 0"),
    ErrorCase("padding_word", (X, W, None, 1, "full"), match="'valid' or 'same'"),
    ErrorCase("strided_same", (X, W, None, 2, "same"), match="where padding is 'same'"),
    ErrorCase("too_small", (rand(1, 2, 2, 2), W), match="x must be at least as large as"),
    ErrorCase("huge_result", (X, W, None, 1, 2**31 - 1), match="the result's size must be a tensor's shape"),
    ErrorCase("not_a_tensor", (1.0, W), match="x must be a tensor, got float"),
)

SPEC = OpSpec(
    name="conv2d",
    params=(
        Param("x", "tensor"),
        Param("weight", "tensor"),
        Param("bias", "tensor", None),
        Param("stride", "static", 1),
        Param("padding", "static", 0),
        Param("dilation", "static", 1),
        Param("groups", "static", 1),
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
    gradient=Gradient("conv2d_backward", _backward, saves=("x", "weight")),
    autocast=LOWER,
)
