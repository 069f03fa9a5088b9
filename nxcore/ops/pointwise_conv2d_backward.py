"""pointwise_conv2d_backward: the gradients of pointwise_conv2d, to the image and to the filters.

    grad_x[n, c, row, column] = sum over o of filters[o, c] * grad[n, o, i, j]; with relu, 0 where x <= 0
    grad_filters[o, c]        = sum over n, i, j of grad[n, o, i, j] * a(x[n, c, row, column])
    with (i, j) the output that reads the pixel

A pixel that no output reads has a gradient of 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.pointwise_conv2d import SPEC as FORWARD
from nxcore.ops.pointwise_conv2d import out_shape, read
from nxcore.plugin import (
    Cost,
    Layout,
    Sample,
    TensorMeta,
    backward_of,
    dense,
    laid_out,
    memory_format,
    rand,
)

ALL = (True, True, True)


def reference(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    shifted: Tensor | None = None,
    stride: int = 1,
    relu: bool = False,
    output_mask: tuple[bool, bool, bool] = ALL,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of ``pointwise_conv2d``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output.
    x, weight, shifted, stride, relu
        As in ``pointwise_conv2d``.
    output_mask : (bool, bool, bool)
        Which gradients to compute; the others are None, and that of ``shifted`` if there are none.

    Returns
    -------
    x_grad, weight_grad, shifted_grad : Tensor
        Shapes and dtypes of ``x``, ``weight`` and ``shifted``; ``x_grad`` in the memory format of ``x``.

    Raises
    ------
    InvalidInputError
        As ``pointwise_conv2d``; or if ``grad`` isn't of the output's shape.

    Examples
    --------
    >>> x, weight = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
    >>> nxcore.ops.pointwise_conv2d_backward(torch.ones(1, 1, 1, 1), x, weight, stride=2)[0]
    tensor([[[[1., 0.],
              [0., 0.]]]])
    """
    dtype = x.dtype
    # On a CPU, torch's own gradients accumulate 16 bits in 16 bits.
    incoming, image = (t.float() if dtype.itemsize < 4 else t for t in (grad, x))
    image = functional.relu(image) if relu else image
    made: list[Tensor | None] = []
    total, begin = None, 0
    for shift, filters in enumerate((weight, shifted)):
        if filters is None:
            made.append(None)
            continue
        own, begin = incoming[:, begin : begin + filters.shape[0]], begin + filters.shape[0]
        wanted = output_mask[0], output_mask[1 + shift]
        if not any(wanted):
            made.append(None)
            continue
        x_grad, filters_grad, _ = torch.ops.aten.convolution_backward(
            own,
            image[:, :, shift:, shift:],
            filters.to(image.dtype),
            None,
            [stride, stride],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [*wanted, False],
        )
        if filters_grad is not None:
            filters_grad = filters_grad.to(dtype).contiguous().flatten().view(filters.shape)
        made.append(filters_grad)
        if x_grad is not None:
            x_grad = functional.pad(x_grad, (shift, 0, shift, 0))
            total = x_grad if total is None else total + x_grad
    if total is not None:
        total = torch.where(image <= 0, 0, total) if relu else total
        total = dense(total.to(dtype), memory_format(x))
    return total, made[0], made[1]


def _outputs(_grad: Any, x: Any, weight: Any, shifted: Any, *rest: Any) -> tuple[TensorMeta | None, ...]:
    forms = (memory_format(x), torch.contiguous_format, torch.contiguous_format)
    return tuple(
        laid_out(tuple(given.shape), form, x.dtype, x.device) if wanted and given is not None else None
        for given, form, wanted in zip((x, weight, shifted), forms, rest[-1], strict=True)
    )


def cost(grad: Any, x: Any, weight: Any, shifted: Any, *rest: Any) -> Cost:
    """Count grad and what is used of x read once, the requested gradients written; two operations a term."""
    *where, relu, mask = rest
    filters = weight.nbytes + (0 if shifted is None else shifted.nbytes)
    used = read(x, weight, shifted, *where) * x.element_size()
    of_filters = mask[1] or (mask[2] and shifted is not None)
    moved = grad.nbytes * bool(mask[0] or of_filters) + used * bool(of_filters or (mask[0] and relu))
    moved += (x.nbytes + filters) * bool(mask[0]) + filters * bool(of_filters)
    products = bool(mask[0]) + bool(of_filters)
    return Cost(bytes=moved, flops=2 * grad.numel() * x.shape[1] * products)


def magnitude(grad: Tensor, x: Tensor, weight: Tensor, shifted: Tensor | None, *rest: Any) -> Any:
    """Return the gradients of absolute values."""
    stride, relu, mask = rest
    image = functional.relu(x) if relu else x.abs()
    more = None if shifted is None else shifted.abs()
    x_grad, *others = reference(grad.abs(), image, weight.abs(), more, stride, False, mask)
    if x_grad is not None and relu:
        x_grad = torch.where(x <= 0, 0, x_grad)
    return x_grad, *others


def terms(grad: Any, x: Any, weight: Any, shifted: Any, *rest: Any) -> int:
    """Return the terms of the longest requested sum: the filters, or the pixels."""
    mask = rest[-1]
    made = max(int(w.shape[0]) for w in (weight, shifted) if w is not None)
    pixels = int(grad.numel()) // int(grad.shape[1])
    return int(max(made * bool(mask[0]), pixels * bool(mask[1] or mask[2]), 1))


def _with_grad(sample: Sample) -> Sample | None:
    """Put a gradient of the output's shape in front; none for a sample that is about exact sums."""
    if sample.name == "cancelling":
        return None
    x = sample.args[0]
    layout: Layout = "contiguous" if x.layout == "expanded" else x.layout
    grad = rand(*out_shape(*FORWARD.bind(*sample.args)), layout=layout, dtype=x.dtype)
    return Sample(sample.name, (grad, *sample.args), sample.kwargs, sample.tags)


X, W, S = rand(2, 3, 8, 8), rand(4, 3, 1, 1), rand(2, 3, 1, 1)
GRAD = rand(2, 6, 4, 4)


def _only(which: int) -> dict[str, Any]:
    return {"output_mask": tuple(i == which for i in range(3)), "relu": True}


SAMPLES = (
    Sample("gradient_of_a_sum", (rand(2, 6, 4, 4, layout="repeated"), X, W, S, 2)),
    Sample("only_the_image", (GRAD, X, W, S, 2), _only(0)),
    Sample("only_the_filters", (GRAD, X, W, S, 2), _only(1)),
    Sample("only_the_shifted_filters", (GRAD, X, W, S, 2), _only(2)),
    Sample("formats_differ", (rand(2, 6, 4, 4, layout="channels_last"), X, W, S, 2)),
    Sample("many_images", (rand(33, 3, 4, 5), rand(33, 2, 4, 5), rand(3, 2, 1, 1))),
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
