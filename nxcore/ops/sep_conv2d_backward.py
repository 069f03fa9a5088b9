"""sep_conv2d_backward: the gradients of sep_conv2d, to the image, the filters and the 1x1 weights.

    du[n, c, i, j]    = sum over o of pw_weight[o, c] * grad[n, o, i, j]
    grad_x            = grad of the depthwise convolution from du, 0 where x <= 0 and relu is True
    grad_dw_weight    = grad of the depthwise convolution's weight from du, with relu(x)
    grad_pw_weight[o, c] = sum over n, i, j of grad[n, o, i, j] * u[n, c, i, j]

Intermediates are never rounded to 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.depthwise_conv2d import reference as depthwise
from nxcore.ops.depthwise_conv2d_backward import reference as depthwise_backward
from nxcore.ops.sep_conv2d import SPEC as FORWARD
from nxcore.ops.sep_conv2d import out_shape, pointwise, wide
from nxcore.plugin import (
    Cost,
    Layout,
    Sample,
    TensorMeta,
    Window,
    backward_of,
    dense,
    laid_out,
    memory_format,
    rand,
    window_of,
)

ALL = (True, True, True)
Pairs = int | tuple[int, int]


def reference(
    grad: Tensor,
    x: Tensor,
    dw_weight: Tensor,
    pw_weight: Tensor,
    stride: Pairs = 1,
    padding: Pairs | str = 0,
    dilation: Pairs = 1,
    relu: bool = True,
    output_mask: tuple[bool, bool, bool] = ALL,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of ``sep_conv2d``, all in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output.
    x, dw_weight, pw_weight, stride, padding, dilation, relu
        As in ``sep_conv2d``.
    output_mask : (bool, bool, bool)
        Which gradients to compute; the others are None.

    Returns
    -------
    x_grad, dw_grad, pw_grad : Tensor
        Shapes and dtypes of ``x``, ``dw_weight`` and ``pw_weight``; ``x_grad`` in the memory format of ``x``.

    Raises
    ------
    InvalidInputError
        As ``sep_conv2d``; or if ``grad`` isn't of the output's shape.

    Examples
    --------
    >>> x, dw_weight, pw_weight = torch.ones(1, 2, 2), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
    >>> nxcore.ops.sep_conv2d_backward(torch.ones(1, 1, 1), x, dw_weight, pw_weight)[2]
    tensor([[[[4.]]]])
    """
    dtype, where = x.dtype, (stride, padding, dilation)
    incoming, image, filters, points = wide(grad), wide(x), wide(dw_weight), wide(pw_weight).flatten(1)
    image = functional.relu(image) if relu else image
    x_grad = dw_grad = pw_grad = None
    if output_mask[0] or output_mask[1]:
        inner = dense(pointwise(incoming, points.t()), memory_format(image))
        x_grad, dw_grad = depthwise_backward(inner, image, filters, *where, output_mask[:2])
    if x_grad is not None:
        x_grad = torch.where(image <= 0, 0, x_grad) if relu else x_grad
        x_grad = dense(x_grad.to(dtype), memory_format(x))
    if dw_grad is not None:
        dw_grad = dw_grad.to(dtype).contiguous().flatten().view(dw_weight.shape)
    if output_mask[2]:
        u = depthwise(image, filters, *where)
        pw_grad = incoming.flatten(-2) @ u.flatten(-2).mT
        pw_grad = (pw_grad.sum(0) if pw_grad.ndim == 3 else pw_grad).to(dtype).view(pw_weight.shape)
    return x_grad, dw_grad, pw_grad


def _outputs(grad: Any, x: Any, dw_weight: Any, pw_weight: Any, *rest: Any) -> tuple[TensorMeta | None, ...]:
    del grad
    forms = (memory_format(x), torch.contiguous_format, torch.contiguous_format)
    return tuple(
        laid_out(tuple(given.shape), form, x.dtype, x.device) if wanted else None
        for given, form, wanted in zip((x, dw_weight, pw_weight), forms, rest[-1], strict=True)
    )


def cost(grad: Any, x: Any, dw_weight: Any, pw_weight: Any, *rest: Any) -> Cost:
    """Count grad and x read once, the requested gradients written."""
    *where, _, mask = rest
    given = (x, dw_weight, pw_weight)
    moved = (grad.nbytes + sum(t.nbytes for t in given)) * any(mask)
    moved += sum(t.nbytes for t, wanted in zip(given, mask, strict=True) if wanted)
    taps, channels = window_of(x, dw_weight, *where).taps, x.shape[-3]
    points = 2 * grad.numel() * channels
    filters = 2 * grad.numel() // pw_weight.shape[0] * channels * taps
    flops = (points if mask[0] or mask[1] else 0) + filters * sum(map(bool, mask)) + points * bool(mask[2])
    return Cost(bytes=moved, flops=flops)


def magnitude(grad: Tensor, x: Tensor, dw_weight: Tensor, pw_weight: Tensor, *rest: Any) -> Any:
    """Return the gradients of absolute values."""
    *where, relu, mask = rest
    image = functional.relu(x) if relu else x.abs()
    return reference(grad.abs(), image, dw_weight.abs(), pw_weight.abs(), *(*where, False, mask))


def terms(grad: Any, x: Any, dw_weight: Any, pw_weight: Any, *rest: Any) -> int:
    """Return the terms of the longest requested sum: channels and taps, or the uses of a weight."""
    *where, _, mask = rest
    taps, made = window_of(x, dw_weight, *where).taps, int(pw_weight.shape[0])
    pixels = int(grad.numel()) // made
    return max(made * taps, pixels * made if mask[1] else 0, pixels * taps if mask[2] else 0)


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient of the output's shape in front of a sample of sep_conv2d."""
    x, dw_weight, pw_weight, *rest = sample.args
    outputs = Window.of_convolution(x.shape, dw_weight.shape[-2:], *rest).outputs
    layout: Layout = "contiguous" if x.layout == "expanded" else x.layout
    grad = rand(*x.shape[:-3], pw_weight.shape[0], *outputs, layout=layout)
    return Sample(sample.name, (grad, *sample.args), sample.kwargs, sample.tags)


X, DW, PW = rand(2, 3, 5, 6), rand(3, 1, 3, 3), rand(4, 3, 1, 1)
GRAD = rand(2, 4, 5, 6)


def _only(which: int) -> dict[str, Any]:
    return {"output_mask": tuple(i == which for i in range(3))}


SAMPLES = (
    Sample("gradient_of_a_sum", (rand(2, 4, 5, 6, layout="repeated"), X, DW, PW, 1, 1)),
    Sample("only_the_image", (GRAD, X, DW, PW, 1, 1), _only(0)),
    Sample("only_the_filters", (GRAD, X, DW, PW, 1, 1), _only(1)),
    Sample("only_the_points", (GRAD, X, DW, PW, 1, 1), _only(2)),
    Sample(
        "formats_differ",
        (rand(2, 4, 5, 6, layout="channels_last"), X, DW, PW, 1, 1),
    ),
    Sample("many_images", (rand(33, 3, 4, 5), rand(33, 2, 4, 5), rand(2, 1, 3, 3), rand(3, 2, 1, 1), 1, 1)),
)

SPEC = backward_of(
    FORWARD,
    reference,
    shape=lambda *args: out_shape(*args[:-1]),
    same_dtype=True,
    gradients=3,
    cost=cost,
    magnitude=magnitude,
    given=_with_grad,
    samples=SAMPLES,
    terms=terms,
    outputs=_outputs,
)
