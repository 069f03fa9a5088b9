"""foreach_sep_conv2d_batch_norm: several convolutions as sep_conv2d, of which some are normalised.

    y_i = sep_conv2d(xs[i], dw_weights[i], pw_weights[i], strides[i], paddings[i], dilations[i], relu)
    outs[i] = (y_i - mean) / sqrt(var + eps) where normed[i], else y_i;  mean and var of y_i as in batch_norm

The convolutions that leave one state of a search's cell depend on nothing of each other: Liu, Simonyan, Yang
2019, arXiv:1806.09055. One launch of all of them fills a device that one of them leaves idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.batch_norm import require_channels, require_eps
from nxcore.ops.sep_conv2d import SPEC as SEP_CONV2D
from nxcore.ops.sep_conv2d_batch_norm import SPEC as BLOCK
from nxcore.plugin import (
    Cost,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    brief,
    rand,
    require_flag,
    require_flags,
    require_same,
    require_tensor,
)

Flags = tuple[bool, ...]
Integers = tuple[int, ...]

LISTS = ("xs", "dw_weights", "pw_weights")
WINDOWS = ("strides", "paddings", "dilations")


def reference(
    xs: Sequence[Tensor],
    dw_weights: Sequence[Tensor],
    pw_weights: Sequence[Tensor],
    strides: Integers,
    paddings: Integers,
    dilations: Integers,
    normed: Flags | None = None,
    relu: bool = True,
    eps: float = 1e-5,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """Convolve each of ``xs`` as ``sep_conv2d`` does, and normalise the results that ``normed`` names.

    Parameters
    ----------
    xs : sequence of Tensor
        N >= 1 images (images, C, H, W) of one floating dtype and device. A tensor may be there several times.
    dw_weights, pw_weights : sequence of Tensor
        N each, as ``sep_conv2d`` takes them for each of ``xs``. All results must have one shape.
    strides, paddings, dilations : tuple of int
        N each.
    normed : tuple of bool, optional
        Which results are normalised; all by default.
    relu : bool, default True
        Whether negative elements of ``xs`` count as zero.
    eps : float, default 1e-5
        Added to the variances; positive.

    Returns
    -------
    outs : tuple of Tensor
        N results, normalised or not, as ``sep_conv2d_batch_norm`` or ``sep_conv2d`` returns them.
    ys : tuple of Tensor
        The input of each norm, in float32 or wider, without a gradient.
    mean, var : Tensor
        (normalised results, channels out), without a gradient, as ``batch_norm`` returns them; None where no
        result is normalised.

    Raises
    ------
    InvalidInputError
        If there is no tensor, the sequences differ in length, results differ in shape, or as
        ``sep_conv2d_batch_norm``.

    Examples
    --------
    >>> x, weight = torch.arange(4.0).view(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
    >>> outs, ys, mean, var = nxcore.ops.foreach_sep_conv2d_batch_norm(
    ...     [x, x], [weight, 2 * weight], [weight, weight], (1, 1), (0, 0), (1, 1), (False, True)
    ... )
    >>> torch.equal(outs[0], x), torch.equal(ys[0], 2 * x), mean
    (True, True, tensor([[3.]]))
    """
    given = (xs, dw_weights, pw_weights, strides, paddings, dilations, normed, relu, eps)
    return gathered([(norm, spec.reference(*one)) for norm, spec, one in _each(*given)])


def _each(*args: Any) -> Iterator[tuple[bool, OpSpec, tuple[Any, ...]]]:
    """Yield of each convolution whether it is normalised, and its own operator with the arguments of that."""
    *given, normed, relu, eps = args
    for one, norm in zip(each(*given, relu), flags(args[0], normed), strict=True):
        yield (True, BLOCK, (*one, None, None, eps)) if norm else (False, SEP_CONV2D, one)


def gathered(found: Sequence[tuple[bool, Any]]) -> tuple[Any, ...]:
    """Return all results, the norms' inputs, and their statistics as one tensor each; None of no norm."""
    outs = tuple(result[0] if norm else result for norm, result in found)
    kept = [result[1:] for norm, result in found if norm]
    if not kept:
        return outs, (), None, None
    ys, means, variances = zip(*kept, strict=True)
    return outs, ys, torch.stack(means), torch.stack(variances)


def flags(xs: Any, normed: Flags | None) -> Flags:
    """Return ``normed``, all true for None."""
    return (True,) * len(xs) if normed is None else tuple(normed)


def each(*given: Any) -> list[tuple[Any, ...]]:
    """Return the arguments of each convolution, as ``sep_conv2d`` takes them.

    Parameters
    ----------
    *given
        ``xs``, ``dw_weights``, ``pw_weights``, ``strides``, ``paddings``, ``dilations``, ``relu``.
    """
    *lists, relu = given
    return [(*one, relu) for one in zip(*lists, strict=True)]


def require_tensors(values: Any, name: str, count: int | None = None) -> None:
    """Raise unless ``values`` is a sequence of tensors: of ``count``, or of at least one."""
    if not isinstance(values, list | tuple):
        got = "a tensor" if isinstance(values, Tensor) else type(values).__name__
        raise InvalidInputError(f"{name} must be a sequence of tensors, got {got}", argument=name)
    if count is None and not values:
        raise InvalidInputError(f"{name} must hold at least one tensor, got none", argument=name)
    if count is not None and len(values) != count:
        raise InvalidInputError(f"{name} must hold {count} tensors, got {len(values)}", argument=name)
    for i, value in enumerate(values):
        require_tensor(value, f"{name}[{i}]")


def require_numbers(values: Any, name: str, count: int) -> None:
    """Raise unless there is an integer for each convolution."""
    if not isinstance(values, tuple | list) or any(type(value) is not int for value in values):
        raise InvalidInputError(f"{name} must be a tuple of integers, got {brief(values)}", argument=name)
    if len(values) != count:
        raise InvalidInputError(f"{name} must hold {count} integers, got {len(values)}", argument=name)


def check(xs: Any, dw_weights: Any, pw_weights: Any, *rest: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    strides, paddings, dilations, normed, relu, eps = rest
    require_tensors(xs, "xs")
    for name, values in (("dw_weights", dw_weights), ("pw_weights", pw_weights)):
        require_tensors(values, name, len(xs))
    for name, numbers in zip(WINDOWS, (strides, paddings, dilations), strict=True):
        require_numbers(numbers, name, len(xs))
    if normed is not None:
        require_flags(normed, len(xs), "normed")
    require_flag(relu, "relu")
    require_eps(eps)
    require_same(xs, "xs", "dtype", "device")
    made: list[TensorMeta] = []
    convolutions = each(xs, dw_weights, pw_weights, strides, paddings, dilations, relu)
    for i, (given, norm) in enumerate(zip(convolutions, flags(xs, normed), strict=True)):
        try:
            made.append(_checked(given, norm))
        except InvalidInputError as error:
            raise InvalidInputError(f"of convolution {i}, {error}", argument=f"{error.argument}s") from None
        if made[i].shape != made[0].shape:
            raise InvalidInputError(
                f"xs must lead to results of one shape: that of 0 is {made[0].shape}, of {i} {made[i].shape}",
                argument="xs",
            )


def _checked(given: tuple[Any, ...], norm: bool) -> TensorMeta:
    """Return the result of one convolution; raise unless it is defined."""
    SEP_CONV2D.check(*given)
    if given[0].ndim != 4:
        raise InvalidInputError(f"x must be (N, C, H, W), got {tuple(given[0].shape)}", argument="x")
    made: TensorMeta = SEP_CONV2D.outputs(*given)
    if norm:
        require_channels(made)
    return made


def statistics(ys: Sequence[TensorMeta]) -> TensorMeta | None:
    """Describe the means, or the variances; None of no norm."""
    if not ys:
        return None
    return TensorMeta.row_major((len(ys), ys[0].shape[1]), ys[0].dtype, ys[0].device)


def outputs(*args: Any) -> tuple[Any, ...]:
    """Describe the results."""
    found = [(norm, spec.outputs(*one)) for norm, spec, one in _each(*args)]
    ys = tuple(result[1] for norm, result in found if norm)
    return tuple(result[0] if norm else result for norm, result in found), ys, *(statistics(ys),) * 2


def cost(*args: Any) -> Cost:
    """Add up those of the convolutions and norms; a tensor that is there several times counts as often."""
    found = [spec.cost(*one) for _, spec, one in _each(*args)]
    return Cost(bytes=sum(c.bytes for c in found), flops=sum(c.flops for c in found))


def magnitude(*args: Any) -> tuple[Any, ...]:
    """Return the scales of each convolution's results."""
    return gathered([(norm, spec.magnitude(*one)) for norm, spec, one in _each(*args)])


def terms(*args: Any) -> int:
    """Return the terms of the longest sum."""
    return max(spec.terms(*one) for _, spec, one in _each(*args))


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

DARTS = ((3, 1, 1), (5, 2, 1), (3, 2, 2), (5, 4, 2))
"""Filter size, padding and dilation of the convolutions of an edge: two separable, two dilated."""


def convolutions(
    shape: tuple[int, ...], made: int, *windows: tuple[int, int, int, int], **how: Any
) -> tuple[Any, ...]:
    """Describe the arguments of convolutions by windows of size, stride, padding and dilation."""
    channels = shape[1]
    return (
        tuple(rand(*shape, **how) for _ in windows),
        tuple(rand(channels, 1, size, size) for size, *_ in windows),
        tuple(rand(made, channels, 1, 1) for _ in windows),
        *(tuple(window[k] for window in windows) for k in (1, 2, 3)),
    )


def edges(count: int, shape: tuple[int, ...], stride: int = 1) -> tuple[Any, ...]:
    """Describe what leaves a state over so many edges of DARTS."""
    windows = [(size, stride, padding, dilation) for size, padding, dilation in DARTS] * count
    return convolutions(shape, shape[1], *windows)


THREES = ((3, 1, 1, 1), (3, 1, 1, 1))

SAMPLES = (
    Sample("edge", edges(1, (2, 3, 9, 11)), tags=SMOKE),
    Sample("one_not_normed", (*edges(1, (2, 4, 6, 8)), (True, True, False, True)), tags=SMOKE),
    Sample("none_normed", (*edges(1, (2, 3, 7, 8)), (False,) * 4), tags=SMOKE),
    Sample("reduction", edges(1, (2, 5, 8, 10), 2)),
    Sample("some_edges", edges(3, (2, 3, 5, 6))),
    Sample("more_than_a_launch", edges(9, (2, 2, 4, 4)), tags=SMOKE),
    Sample(
        "many_windows",
        convolutions(
            (2, 3, 8, 8),
            4,
            *(
                (3, 1, 1, 1),
                (5, 1, 2, 1),
                (7, 1, 3, 1),
                (1, 1, 0, 1),
                (3, 1, 2, 2),
                (5, 1, 4, 2),
                (7, 1, 6, 2),
            ),
        ),
    ),
    Sample(
        "sizes_differ",
        (
            (rand(2, 3, 8, 10), rand(2, 5, 4, 5)),
            (rand(3, 1, 3, 3), rand(5, 1, 5, 5)),
            (rand(4, 3, 1, 1), rand(4, 5, 1, 1)),
            *((2, 1), (1, 2), (1, 1)),
        ),
    ),
    Sample("one", convolutions((3, 2, 5, 5), 3, THREES[0])),
    Sample("negative_counts", convolutions((2, 3, 5, 6), 2, *THREES), {"relu": False}),
    Sample("large_eps", convolutions((3, 2, 6, 6), 2, *THREES), {"eps": 3.0}),
    Sample("square_planes", edges(1, (2, 64, 8, 8))),
    Sample("square_planes_of_16_channels", convolutions((1, 16, 32, 32), 16, *THREES)),
    Sample("square_planes_of_36_channels", convolutions((1, 36, 32, 32), 36, (5, 1, 2, 1), (5, 1, 2, 1))),
    Sample("square_planes_of_144_channels", convolutions((2, 144, 8, 8), 144, (3, 1, 1, 1), (5, 1, 4, 2))),
    Sample("square_planes_strided", edges(1, (2, 64, 16, 16), 2)),
    Sample(
        "square_planes_strided_of_32_channels",
        convolutions((1, 32, 32, 32), 32, (3, 2, 1, 1), (5, 2, 2, 1), (5, 2, 2, 1)),
    ),
    Sample(
        "square_planes_strided_of_72_channels",
        convolutions((1, 72, 32, 32), 72, (5, 2, 2, 1), (3, 2, 2, 2)),
    ),
    Sample("many_channels", convolutions((2, 37, 4, 4), 70, *THREES)),
    Sample("no_padding", convolutions((2, 2, 6, 7), 2, (3, 1, 0, 1), (3, 1, 0, 1))),
    Sample("nan", convolutions((2, 2, 3, 14), 3, *THREES, values="nan")),
    Sample("channels_last", convolutions((2, 4, 5, 6), 4, *THREES, layout="channels_last")),
    Sample("gaps_in_memory", convolutions((2, 2, 5, 8), 3, *THREES, layout="strided")),
    Sample("odd_storage_offset", convolutions((2, 4, 8, 8), 4, *THREES, layout="sliced")),
    Sample("transposed", convolutions((2, 3, 4, 5), 2, *THREES, layout="transposed")),
    Sample("expanded", convolutions((3, 2, 4, 6), 2, *THREES, layout="expanded")),
    *(
        Sample(f"darts_{channels}_{count}", edges(count, (64, channels, side, side)), tags=BENCH)
        for channels, side, count in ((16, 32, 4), (64, 8, 4))
    ),
)

X = edges(1, (2, 2, 4, 4))
ONE = convolutions((1, 2, 4, 4), 3, THREES[0])

ERRORS = (
    ErrorCase("nothing", ((),) * 6, match="xs must hold at least one tensor, got none"),
    ErrorCase(
        "a_tensor", (rand(1, 2, 4, 4), *ONE[1:]), match="xs must be a sequence of tensors, got a tensor"
    ),
    ErrorCase("no_tensors", ((1.0,), *ONE[1:]), match=r"xs\[0\] must be a tensor, got float"),
    ErrorCase("few_filters", (X[0], X[1][:3], *X[2:]), match="dw_weights must hold 4 tensors, got 3"),
    ErrorCase("few_points", (*X[:2], X[2][:1], *X[3:]), match="pw_weights must hold 4 tensors, got 1"),
    ErrorCase("few_strides", (*X[:3], X[3][:2], *X[4:]), match="strides must hold 4 integers, got 2"),
    ErrorCase("pairs", (*ONE[:4], ((1, 1),), ONE[5]), match="paddings must be a tuple of integers, got"),
    ErrorCase("one_number", (*ONE[:5], 1), match="dilations must be a tuple of integers, got 1"),
    ErrorCase(
        "stride", (*ONE[:3], (0,), *ONE[4:]), match="of convolution 0, stride must be at least 1, got 0"
    ),
    ErrorCase("rank", ((rand(2, 4, 4),), *ONE[1:]), match=r"convolution 0, x must be \(N, C, H, W\), got"),
    ErrorCase(
        "points",
        (*ONE[:2], (rand(3, 3, 1, 1),), *ONE[3:]),
        match=r"of convolution 0, pw_weight must be \(channels out, 2, 1, 1\)",
    ),
    ErrorCase(
        "mixed_dtypes",
        ((rand(1, 2, 4, 4), rand(1, 2, 4, 4, dtype=torch.float16)), *(v * 2 for v in ONE[1:])),
        match="xs must share one dtype",
    ),
    ErrorCase(
        "mixed_results",
        ((rand(1, 2, 4, 4), rand(1, 2, 4, 5)), *(v * 2 for v in ONE[1:])),
        match=r"xs must lead to results of one shape: that of 0 is \(1, 3, 4, 4\), of 1 \(1, 3, 4, 5\)",
    ),
    ErrorCase(
        "one_value",
        ((rand(1, 2, 1, 1),), (rand(2, 1, 1, 1),), ONE[2], (1,), (0,), (1,)),
        match="Expected more than 1 value per channel",
    ),
    ErrorCase("short_normed", (*X, (True,)), match="normed must have 4 entries, got 1"),
    ErrorCase("not_flags", (*X, "all"), match="normed must be a sequence of flags"),
    ErrorCase("relu", (*ONE, None, 1), match="relu must be True or False, got 1"),
    ErrorCase("eps", (*ONE, None, True, 0.0), match="eps must be a positive number, got 0.0"),
)

SPEC = OpSpec(
    name="foreach_sep_conv2d_batch_norm",
    params=(
        *(Param(name, "tensors") for name in LISTS),
        *(Param(name, "static") for name in WINDOWS),
        Param("normed", "static", None),
        Param("relu", "static", True),
        Param("eps", "static", 1e-5),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    outputs=outputs,
    whole="each result depends on all images, by the statistics of a channel",
)
