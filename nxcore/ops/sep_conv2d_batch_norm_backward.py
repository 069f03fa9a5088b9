"""sep_conv2d_batch_norm_backward: the gradients of sep_conv2d_batch_norm, to the image and to all weights.

    dy = the gradient of batch_norm at y;  the others are the gradients of sep_conv2d from dy

Intermediates are never rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.batch_norm import require_eps, require_factor
from nxcore.ops.batch_norm_backward import SPEC as NORM
from nxcore.ops.batch_norm_backward import reference as norm_backward
from nxcore.ops.sep_conv2d import convolved, wide
from nxcore.ops.sep_conv2d_backward import SPEC as CONVOLUTION
from nxcore.ops.sep_conv2d_backward import reference as convolution_backward
from nxcore.ops.sep_conv2d_batch_norm import SPEC as FORWARD
from nxcore.ops.sep_conv2d_batch_norm import Call, between
from nxcore.ops.sep_conv2d_batch_norm import check_convolution as check_forward
from nxcore.plugin import (
    Cost,
    ErrorCase,
    InvalidInputError,
    Layout,
    Param,
    Parts,
    Problem,
    Sample,
    TensorMeta,
    Window,
    backward_of,
    rand,
    require_shape,
    require_tensor,
)

ALL = (True, True, True, True, True)
Pairs = int | tuple[int, int]


def reference(
    grad: Tensor,
    x: Tensor,
    dw_weight: Tensor,
    pw_weight: Tensor,
    y: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    stride: Pairs = 1,
    padding: Pairs | str = 0,
    dilation: Pairs = 1,
    relu: bool = True,
    eps: float = 1e-5,
    output_mask: tuple[bool, ...] = ALL,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of ``sep_conv2d_batch_norm``, all in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of ``out``.
    x, dw_weight, pw_weight, weight, stride, padding, dilation, relu, eps
        As in ``sep_conv2d_batch_norm``.
    y, mean, var : Tensor
        The results of ``sep_conv2d_batch_norm``.
    output_mask : tuple of bool
        Which gradients to compute: of ``x``, ``dw_weight``, ``pw_weight``, ``weight`` and ``bias``. Without a
        ``weight``, the last two are None.

    Returns
    -------
    x_grad, dw_grad, pw_grad : Tensor
        As ``sep_conv2d_backward``.
    weight_grad, bias_grad : Tensor
        As ``batch_norm_backward``.

    Raises
    ------
    InvalidInputError
        As ``sep_conv2d_batch_norm``; or if ``grad``, ``y``, ``mean`` or ``var`` don't fit.

    Examples
    --------
    >>> x, weight = torch.arange(4.0).view(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
    >>> out, y, mean, var = nxcore.ops.sep_conv2d_batch_norm(x, weight, weight)
    >>> grads = nxcore.ops.sep_conv2d_batch_norm_backward(x, x, weight, weight, y, mean, var)
    >>> grads[0].shape
    torch.Size([1, 1, 2, 2])
    """
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, dw_weight, pw_weight)):
        # For second derivatives: saved tensors have no gradient.
        y = convolved(x, dw_weight, pw_weight, stride, padding, dilation, relu)
    incoming, mask = wide(grad), (output_mask[0], output_mask[1], output_mask[2])
    inner, weight_grad, bias_grad = norm_backward(
        incoming, y.to(incoming.dtype), mean, var, weight, eps, (any(mask), *output_mask[3:])
    )
    if inner is None:
        return None, None, None, weight_grad, bias_grad
    grads = convolution_backward(
        inner, wide(x), wide(dw_weight), wide(pw_weight), stride, padding, dilation, relu, mask
    )
    x_grad, dw_grad, pw_grad = (g if g is None else g.to(x.dtype) for g in grads)
    return x_grad, dw_grad, pw_grad, weight_grad, bias_grad


def check(x: Any, dw_weight: Any, pw_weight: Any, y: Any, mean: Any, var: Any, *rest: Any) -> None:
    """Raise unless the operator is defined for the arguments after the gradient."""
    weight, *window, eps = rest
    convolution = (x, dw_weight, pw_weight, *window)
    check_forward(*convolution)
    made = between(*convolution)
    floats = tuple(dict.fromkeys((made.dtype, torch.float32)))
    require_tensor(y, "y")
    require_shape(y, tuple(made.shape), "y")
    if y.device != x.device or y.dtype not in floats:
        raise InvalidInputError(
            f"y must be {' or '.join(map(str, floats))} on {x.device}, got {y.dtype} on {y.device}",
            argument="y",
        )
    for name, value in (("mean", mean), ("var", var)):
        require_tensor(value, name)
        require_factor(value, made, name, floats)
    require_factor(weight, made, "weight", tuple(dict.fromkeys((x.dtype, made.dtype))))
    require_eps(eps)


def _split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the arguments of batch_norm_backward, and those of sep_conv2d_backward by its gradient."""
    grad, x, dw_weight, pw_weight, y, mean, var, weight, *window, eps, mask = args
    norm = (grad, y, mean, var, weight, eps, (any(mask[:3]), *mask[3:]))
    return norm, lambda inner: (inner, x, dw_weight, pw_weight, *window, tuple(mask[:3]))


def outputs(*args: Any) -> tuple[TensorMeta | None, ...]:
    """Describe the gradients."""
    norm, convolution = _split(args)
    _, *factors = NORM.outputs(*norm)
    return *CONVOLUTION.outputs(*convolution(args[0])), *factors


def cost(*args: Any) -> Cost:
    """Count grad, y, x and the weights read once, the requested gradients written."""
    norm, convolution = _split(args)
    first, inner = NORM.cost(*norm), TensorMeta.of(args[4])
    if not any(args[-1][:3]):
        return first
    second = CONVOLUTION.cost(*convolution(inner))
    return Cost(bytes=first.bytes + second.bytes - 2 * inner.nbytes, flops=first.flops + second.flops)


def magnitude(*args: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of absolute values."""
    norm, convolution = _split(args)
    inner, *factors = NORM.magnitude(*norm)
    images = (None, None, None) if inner is None else CONVOLUTION.magnitude(*convolution(inner))
    return *images, *factors


def terms(*args: Any) -> int:
    """Return the terms of both sums."""
    norm, convolution = _split(args)
    return NORM.terms(*norm) + CONVOLUTION.terms(*convolution(args[4]))


def _parts(problem: Problem) -> tuple[Problem, Problem | None]:
    """Return the problems that a call in float32 consists of: the batch norm's, and the convolution's."""
    arguments, convolution = _split(problem.args)
    norm = Problem(NORM, arguments)
    inner = norm.outputs[0]
    return norm, None if inner is None else Problem(CONVOLUTION, convolution(inner))


def _join(problem: Problem, normalise: Call, convolve: Call | None) -> Call:
    """Run both in sequence."""
    *_, stride, padding, dilation, relu, eps, mask = problem.args
    factors, images = (any(mask[:3]), *mask[3:]), tuple(mask[:3])

    def call(
        grad: Tensor,
        x: Tensor,
        dw_weight: Tensor,
        pw_weight: Tensor,
        y: Tensor,
        mean: Tensor,
        var: Tensor,
        weight: Tensor | None,
        *_: Any,
    ) -> tuple[Tensor | None, ...]:
        inner, weight_grad, bias_grad = normalise(grad, y, mean, var, weight, eps, factors)
        if convolve is None:
            return None, None, None, weight_grad, bias_grad
        given = inner, x, dw_weight, pw_weight, stride, padding, dilation, relu, images
        return *convolve(*given), weight_grad, bias_grad

    return call


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient and the saved tensors into a sample of sep_conv2d_batch_norm."""
    x, dw_weight, pw_weight, *window = sample.args
    seen = Window.of_convolution(x.shape, dw_weight.shape[-2:], *window[:3])
    made = (x.shape[0], pw_weight.shape[0], *seen.outputs)
    layout: Layout = "channels_last" if x.layout == "channels_last" else "contiguous"
    # Saved tensors are float32 for half types too.
    kept = (
        rand(*made, layout=layout, dtype=torch.float32),
        rand(made[1], low=-0.1, high=0.1, dtype=torch.float32),
        rand(made[1], low=0.5, high=2.0, dtype=torch.float32),
    )
    kwargs = {name: value for name, value in sample.kwargs.items() if name != "bias"}
    args = (rand(*made, layout=layout), x, dw_weight, pw_weight, *kept, kwargs.pop("weight", None), *window)
    return Sample(sample.name, args, kwargs, sample.tags)


GIVEN = (rand(2, 3, 4, 4), rand(3, 1, 3, 3), rand(2, 3, 1, 1))
KEPT = (rand(2, 2, 4, 4, dtype=torch.float32), *(rand(2, low=0.5, high=2.0, dtype=torch.float32),) * 2)
GRAD, FACTOR = rand(2, 2, 4, 4), rand(2)

SAMPLES = (
    Sample("gradient_of_a_sum", (rand(2, 2, 4, 4, layout="repeated"), *GIVEN, *KEPT, None, 1, 1)),
    Sample("only_the_image", (GRAD, *GIVEN, *KEPT, FACTOR, 1, 1), {"output_mask": (True, *(False,) * 4)}),
    Sample(
        "only_factors",
        (GRAD, *GIVEN, *KEPT, FACTOR, 1, 1),
        {"output_mask": (False, False, False, True, True)},
    ),
)

ERRORS = (
    ErrorCase(
        "kept",
        (GRAD, *GIVEN, rand(2, 2, 4, 5), *KEPT[1:], None, 1, 1),
        match="y must have the output's shape",
    ),
    ErrorCase(
        "mean",
        (GRAD, *GIVEN, KEPT[0], rand(3), KEPT[2], None, 1, 1),
        match=r"mean must be \(2,\), got \(3,\)",
    ),
)

*TENSORS, STRIDE, PADDING, DILATION, RELU, WEIGHT, _, EPS = FORWARD.params
SAVED = tuple(Param(name, "tensor") for name in ("y", "mean", "var"))

SPEC = backward_of(
    FORWARD,
    reference,
    params=(*TENSORS, *SAVED, WEIGHT, STRIDE, PADDING, DILATION, RELU, EPS),
    check=check,
    shape=lambda x, dw_weight, pw_weight, y, *_: tuple(y.shape),
    same_dtype=True,
    gradients=5,
    cost=cost,
    magnitude=magnitude,
    given=_with_grad,
    samples=SAMPLES,
    errors=ERRORS,
    terms=terms,
    outputs=outputs,
    whole="each result depends on all images, by the statistics of a channel",
    parts=Parts(("batch_norm_backward", "sep_conv2d_backward"), _parts, _join),
)
