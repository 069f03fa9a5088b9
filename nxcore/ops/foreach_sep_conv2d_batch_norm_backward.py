"""foreach_sep_conv2d_batch_norm_backward: all gradients of foreach_sep_conv2d_batch_norm.

    of each convolution: sep_conv2d_batch_norm_backward where normed[i], else sep_conv2d_backward

A tensor that ``xs`` holds several times has as many gradients, which nothing adds up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.foreach_sep_conv2d_batch_norm import (
    LISTS,
    WINDOWS,
    Flags,
    Integers,
    convolutions,
    each,
    flags,
    require_tensors,
    statistics,
)
from nxcore.ops.foreach_sep_conv2d_batch_norm import SPEC as FORWARD
from nxcore.ops.foreach_sep_conv2d_batch_norm import check as check_forward
from nxcore.ops.sep_conv2d import SPEC as SEP_CONV2D
from nxcore.ops.sep_conv2d_backward import SPEC as CONVOLUTION
from nxcore.ops.sep_conv2d_batch_norm import between
from nxcore.ops.sep_conv2d_batch_norm_backward import SPEC as BLOCK
from nxcore.plugin import (
    Cost,
    ErrorCase,
    InvalidInputError,
    Layout,
    OpSpec,
    Param,
    Sample,
    Window,
    brief,
    rand,
    require_flags,
    require_shape,
    require_tensor,
)

Gradients = tuple[Tensor | None, ...]
KINDS = len(LISTS)


def reference(
    grads: Sequence[Tensor],
    xs: Sequence[Tensor],
    dw_weights: Sequence[Tensor],
    pw_weights: Sequence[Tensor],
    ys: Sequence[Tensor],
    strides: Integers,
    paddings: Integers,
    dilations: Integers,
    mean: Tensor | None = None,
    var: Tensor | None = None,
    normed: Flags | None = None,
    relu: bool = True,
    eps: float = 1e-5,
    output_mask: Flags | None = None,
) -> tuple[Gradients, Gradients, Gradients]:
    """Return the gradients of ``foreach_sep_conv2d_batch_norm``, all in float32 or wider.

    Parameters
    ----------
    grads : sequence of Tensor
        The gradients of ``outs``, N of them.
    xs, dw_weights, pw_weights, strides, paddings, dilations, normed, relu, eps
        As in ``foreach_sep_conv2d_batch_norm``.
    ys, mean, var
        The results of ``foreach_sep_conv2d_batch_norm``.
    output_mask : tuple of bool, optional
        Which gradients to compute: N entries for ``xs``, N for ``dw_weights``, N for ``pw_weights``. All by
        default; the others are None.

    Returns
    -------
    xs_grad, dw_grads, pw_grads : tuple of Tensor
        N each, as ``sep_conv2d_backward`` returns them. A tensor that ``xs`` holds several times has as many
        gradients.

    Raises
    ------
    InvalidInputError
        As ``foreach_sep_conv2d_batch_norm``; or if ``grads``, ``ys``, ``mean``, ``var`` or ``output_mask``
        don't fit.

    Examples
    --------
    >>> x, weight = torch.arange(4.0).view(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
    >>> given, window = ([x, x], [weight, weight], [weight, weight]), ((1, 1), (0, 0), (1, 1))
    >>> outs, ys, *kept = nxcore.ops.foreach_sep_conv2d_batch_norm(*given, *window)
    >>> grads = nxcore.ops.foreach_sep_conv2d_batch_norm_backward(outs, *given, ys, *window, *kept)
    >>> len(grads), len(grads[0]), grads[0][1].shape
    (3, 2, torch.Size([1, 1, 2, 2]))
    """
    given = (grads, xs, dw_weights, pw_weights, ys, strides, paddings, dilations, mean, var)
    found = [
        (BLOCK if norm else CONVOLUTION).reference(*one)[:KINDS]
        for norm, one in _each(*given, normed, relu, eps, output_mask)
    ]
    xs_grad, dw_grads, pw_grads = zip(*found, strict=True)
    return xs_grad, dw_grads, pw_grads


def _each(*args: Any) -> Iterator[tuple[bool, tuple[Any, ...]]]:
    """Yield of each convolution whether it is normalised, and its own backward operator's arguments."""
    grads, xs, dw_weights, pw_weights, ys, *windows, mean, var, normed, relu, eps, output_mask = args
    masks = masks_of(xs, output_mask)
    rows = ((y, row(mean, i), row(var, i)) for i, y in enumerate(ys))
    given = each(xs, dw_weights, pw_weights, *windows, relu)
    for grad, one, norm, mask in zip(grads, given, flags(xs, normed), masks, strict=True):
        tensors, window = one[:KINDS], one[KINDS:]
        if norm:
            yield True, (grad, *tensors, *next(rows), None, *window, eps, (*mask, False, False))
        else:
            yield False, (grad, *tensors, *window, mask)


def row(statistic: Any, index: int) -> Any:
    """Return the statistics of one norm, of a tensor or of a description."""
    if isinstance(statistic, Tensor):
        return statistic[index]
    return type(statistic)(statistic.shape[1:], statistic.strides[1:], statistic.dtype, statistic.device)


def masks_of(xs: Any, output_mask: Flags | None) -> list[Flags]:
    """Return the mask of each convolution: its image, its filters, its points."""
    count = len(xs)
    mask = (True,) * (KINDS * count) if output_mask is None else tuple(output_mask)
    return [mask[i::count] for i in range(count)]


def check(grads: Any, xs: Any, dw_weights: Any, pw_weights: Any, ys: Any, *rest: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    strides, paddings, dilations, mean, var, normed, relu, eps, output_mask = rest
    windows = strides, paddings, dilations
    check_forward(xs, dw_weights, pw_weights, *windows, normed, relu, eps)
    given = each(xs, dw_weights, pw_weights, *windows, relu)
    made = tuple(SEP_CONV2D.outputs(*one) for one in given)
    require_tensors(grads, "grads", len(xs))
    for i, (grad, meta) in enumerate(zip(grads, made, strict=True)):
        require_shape(grad, meta.shape, f"grads[{i}]")
        if (grad.dtype, grad.device) != (meta.dtype, meta.device):
            raise InvalidInputError(
                f"grads[{i}] must be {meta.dtype} on {meta.device}, got {grad.dtype} on {grad.device}",
                argument="grads",
            )
    norms = zip(given, flags(xs, normed), strict=True)
    _check_kept(ys, mean, var, tuple(between(*one) for one, norm in norms if norm))
    if output_mask is not None:
        require_flags(output_mask, KINDS * len(xs), "output_mask")


def _check_kept(ys: Any, mean: Any, var: Any, norms: tuple[Any, ...]) -> None:
    """Raise unless the inputs of the norms and their statistics fit."""
    require_tensors(ys, "ys", len(norms))
    wanted = statistics(norms)
    named = [(f"ys[{i}]", y, meta) for i, (y, meta) in enumerate(zip(ys, norms, strict=True))]
    for name, value in (("mean", mean), ("var", var)):
        if wanted is None:
            if value is not None:
                raise InvalidInputError(
                    f"{name} must be None where no result is normalised, got {brief(value)}", argument=name
                )
            continue
        require_tensor(value, name)
        named.append((name, value, wanted))
    for name, value, meta in named:
        require_shape(value, meta.shape, name)
        floats = tuple(dict.fromkeys((meta.dtype, torch.float32)))
        if value.device != meta.device or value.dtype not in floats:
            raise InvalidInputError(
                f"{name} must be {' or '.join(map(str, floats))} on {meta.device}, got {value.dtype} on "
                f"{value.device}",
                argument=name.partition("[")[0],
            )


def outputs(*args: Any) -> tuple[Any, ...]:
    """Describe the gradients."""
    found = [(BLOCK if norm else CONVOLUTION).outputs(*one)[:KINDS] for norm, one in _each(*args)]
    return tuple(zip(*found, strict=True))


def cost(*args: Any) -> Cost:
    """Add up those of the convolutions and norms."""
    found = [(BLOCK if norm else CONVOLUTION).cost(*one) for norm, one in _each(*args)]
    return Cost(bytes=sum(c.bytes for c in found), flops=sum(c.flops for c in found))


def magnitude(*args: Any) -> tuple[Any, ...]:
    """Return the gradients of absolute values."""
    found = [(BLOCK if norm else CONVOLUTION).magnitude(*one)[:KINDS] for norm, one in _each(*args)]
    return tuple(zip(*found, strict=True))


def terms(*args: Any) -> int:
    """Return the terms of the longest sum."""
    return max((BLOCK if norm else CONVOLUTION).terms(*one) for norm, one in _each(*args))


def _with_grads(sample: Sample) -> Sample:
    """Put gradients and the saved tensors into a sample of foreach_sep_conv2d_batch_norm."""
    xs, dw_weights, pw_weights, *windows = sample.args[:6]
    rest = sample.args[6:]
    kwargs = dict(sample.kwargs)
    norms = flags(xs, rest[0] if rest else None)
    seen = Window.of_convolution(xs[0].shape, dw_weights[0].shape[-2:], *(numbers[0] for numbers in windows))
    made = (xs[0].shape[0], pw_weights[0].shape[0], *seen.outputs)
    layout: Layout = "channels_last" if xs[0].layout == "channels_last" else "contiguous"
    # Saved tensors are float32 for half types too.
    ys = tuple(rand(*made, layout=layout, dtype=torch.float32) for norm in norms if norm)
    mean = rand(len(ys), made[1], low=-0.1, high=0.1, dtype=torch.float32) if ys else None
    var = rand(len(ys), made[1], low=0.5, high=2.0, dtype=torch.float32) if ys else None
    grads = tuple(rand(*made, layout=layout) for _ in xs)
    args = (grads, xs, dw_weights, pw_weights, ys, *windows, mean, var, *rest)
    return Sample(sample.name, args, kwargs, sample.tags)


PAIR = _with_grads(Sample("pair", convolutions((2, 3, 4, 4), 2, (3, 1, 1, 1), (5, 1, 2, 1)))).args
YS, WINDOW, KEPT = PAIR[4], PAIR[5:8], PAIR[8:]


def _masked(*which: int) -> dict[str, Any]:
    return {"output_mask": tuple(i in which for i in range(6))}


SAMPLES = (
    *map(_with_grads, FORWARD.samples),
    Sample("gradient_of_a_sum", ((rand(2, 2, 4, 4, layout="repeated"),) * 2, *PAIR[1:])),
    Sample("formats_differ", ((rand(2, 2, 4, 4, layout="channels_last"),) * 2, *PAIR[1:])),
    Sample("only_images", PAIR, _masked(0, 1)),
    Sample("only_one_image", PAIR, _masked(1)),
    Sample("only_filters", PAIR, _masked(2, 3)),
    Sample("only_points", PAIR, _masked(4, 5)),
    Sample("one_of_each", PAIR, _masked(0, 3, 4)),
)

ERRORS = (
    ErrorCase("no_grads", ((), *PAIR[1:]), match="grads must hold 2 tensors, got 0"),
    ErrorCase(
        "grad_of_wrong_shape",
        ((rand(2, 2, 4, 4), rand(2, 2, 4, 5)), *PAIR[1:]),
        match=r"grads\[1\] must have the output's shape \(2, 2, 4, 4\), got",
    ),
    ErrorCase(
        "grad_of_another_dtype",
        ((rand(2, 2, 4, 4, dtype=torch.float16),) * 2, *PAIR[1:]),
        match=r"grads\[0\] must be torch.float32 on cpu, got torch.float16",
    ),
    ErrorCase("few_filters", (*PAIR[:2], PAIR[2][:1], *PAIR[3:]), match="dw_weights must hold 2 tensors"),
    ErrorCase("few_ys", (*PAIR[:4], YS[:1], *PAIR[5:]), match="ys must hold 2 tensors, got 1"),
    ErrorCase(
        "ys", (*PAIR[:4], (rand(2, 2, 4, 5),) * 2, *PAIR[5:]), match=r"ys\[0\] must have the output's shape"
    ),
    ErrorCase("mean", (*PAIR[:8], rand(1, 2), KEPT[1]), match="mean must have the output's shape"),
    ErrorCase(
        "var",
        (*PAIR[:9], rand(2, 2, dtype=torch.float16)),
        match="var must be torch.float32 on cpu, got torch.float16",
    ),
    ErrorCase("no_mean", PAIR[:8], match="mean must be a tensor, got None"),
    ErrorCase(
        "mean_of_none",
        (*PAIR[:4], (), *PAIR[5:], (False, False)),
        match="mean must be None where no result is normalised, got Tensor",
    ),
    ErrorCase("short_mask", PAIR, match="output_mask must have 6 entries", kwargs={"output_mask": (True,)}),
    ErrorCase("not_a_mask", PAIR, match="output_mask must be a sequence", kwargs={"output_mask": "all"}),
)

SPEC = OpSpec(
    name="foreach_sep_conv2d_batch_norm_backward",
    params=(
        Param("grads", "tensors"),
        *(Param(name, "tensors") for name in LISTS),
        Param("ys", "tensors"),
        *(Param(name, "static") for name in WINDOWS),
        *(Param(name, "tensor", None) for name in ("mean", "var")),
        *FORWARD.params[len(LISTS) + len(WINDOWS) :],
        Param("output_mask", "static", None),
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
