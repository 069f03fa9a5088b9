"""conv2d_backward: the gradients of conv2d, to the image, the filters and the bias.

    grad_x[n, c, row, column] = sum over the outputs o, i, j that read it of weight * grad
    grad_weight[o, c, a, b]   = sum over n, i, j of grad[n, o, i, j] * x[n, c, row, column]
    grad_bias[o]              = sum over n, i, j of grad[n, o, i, j]

Torch's own CPU kernels accumulate float16 in float16.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.conv2d import SPEC as FORWARD
from nxcore.ops.conv2d import check, out_shape
from nxcore.plugin import (
    Cost,
    ErrorCase,
    Layout,
    Param,
    Sample,
    TensorMeta,
    Way,
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
    weight: Tensor,
    stride: Pairs = 1,
    padding: Pairs | str = 0,
    dilation: Pairs = 1,
    groups: int = 1,
    output_mask: tuple[bool, bool, bool] = ALL,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of ``conv2d``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output.
    x, weight, stride, padding, dilation, groups
        As in ``conv2d``.
    output_mask : (bool, bool, bool)
        Which gradients to compute; the others are None.

    Returns
    -------
    x_grad, weight_grad, bias_grad : Tensor
        Shapes and dtypes of ``x``, ``weight`` and the bias, the first two in the memory formats of ``x`` and
        ``weight``.

    Raises
    ------
    InvalidInputError
        As ``conv2d``; or if ``grad`` isn't of the output's shape.

    Examples
    --------
    >>> x, weight = torch.ones(1, 2, 2), torch.ones(1, 1, 2, 2)
    >>> nxcore.ops.conv2d_backward(torch.ones(1, 1, 1), x, weight)[0]
    tensor([[[1., 1.],
             [1., 1.]]])
    """
    to_x, to_weight, to_bias = map(bool, output_mask)
    image, incoming = (t if t.ndim == 4 else t.unsqueeze(0) for t in (x, grad))
    # On a CPU, torch's own gradient of the bias adds up less precisely than its sum.
    bias_grad = incoming.sum((0, 2, 3)) if to_bias else None
    if not (to_x or to_weight):
        return None, None, bias_grad
    seen = window_of(x, weight, stride, padding, dilation)
    left, right, above, below = seen.padded
    if padding == "same" and (right > left or below > above):
        # torch's backward supports only symmetric padding.
        image = torch.nn.functional.pad(image, (0, right - left, 0, below - above))
    x_grad, weight_grad, _ = torch.ops.aten.convolution_backward(
        incoming,
        image,
        weight,
        None,
        list(seen.stride),
        list(seen.padding),
        list(seen.dilation),
        False,
        [0, 0],
        groups,
        [to_x, to_weight, False],
    )
    if x_grad is not None:
        x_grad = x_grad[..., : x.shape[-2], : x.shape[-1]]
        x_grad = dense(x_grad if x.ndim == 4 else x_grad.squeeze(0), memory_format(x))
    if weight_grad is not None:
        weight_grad = dense(weight_grad, memory_format(weight))
    return x_grad, weight_grad, bias_grad


def outputs(_grad: Any, x: Any, weight: Any, *rest: Any) -> tuple[TensorMeta | None, ...]:
    """Describe the gradients."""
    described = (
        laid_out(tuple(x.shape), memory_format(x), x.dtype, x.device),
        laid_out(tuple(weight.shape), memory_format(weight), x.dtype, x.device),
        TensorMeta((weight.shape[0],), (1,), x.dtype, x.device),
    )
    return tuple(meta if wanted else None for meta, wanted in zip(described, rest[-1], strict=True))


def cost(grad: Any, x: Any, weight: Any, *rest: Any) -> Cost:
    """Count grad read once, what either product reads and writes, and two operations for each term."""
    mask = rest[-1]
    products = bool(mask[0]) + bool(mask[1])
    moved = grad.nbytes * any(mask) + (x.nbytes + weight.nbytes) * products
    return Cost(bytes=moved, flops=2 * grad.numel() * math.prod(weight.shape[1:]) * products)


def magnitude(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    """Return the gradients of absolute values."""
    return reference(grad.abs(), x.abs(), weight.abs(), *rest)


def terms(grad: Any, x: Any, weight: Any, *rest: Any) -> int:
    """Return the terms of the longest requested sum: the uses of a pixel, or of a weight."""
    *_, groups, mask = rest
    of_pixel = math.prod(weight.shape) // weight.shape[1] // groups
    of_weight = int(grad.numel()) // int(weight.shape[0])
    return int(max(of_pixel * bool(mask[0]), of_weight * bool(mask[1] or mask[2]), 1))


def _with_grad(sample: Sample) -> Sample | None:
    """Put a gradient of the output's shape in front of a sample of conv2d, in place of the bias.

    There is none where the gradients' terms overflow, or for a sample that is about exact sums.
    """
    if sample.name in ("overflow", "cancelling"):
        return None
    x, weight, *rest = sample.args
    bound = FORWARD.bind(*sample.args)
    layout: Layout = "contiguous" if x.layout == "expanded" else x.layout
    grad = rand(*out_shape(*bound), layout=layout, dtype=x.dtype)
    return Sample(sample.name, (grad, x, weight, *rest[1:]), {}, sample.tags)


X, W, GRAD = rand(2, 3, 5, 6), rand(4, 3, 3, 3), rand(2, 4, 5, 6)


def _only(which: int) -> dict[str, Any]:
    return {"output_mask": tuple(i == which for i in range(3))}


SAMPLES = (
    Sample("gradient_of_a_sum", (rand(2, 4, 5, 6, layout="repeated"), X, W, 1, 1)),
    Sample("only_the_image", (GRAD, X, W, 1, 1), _only(0)),
    Sample("only_the_filters", (GRAD, X, W, 1, 1), _only(1)),
    Sample("only_the_bias", (GRAD, X, W, 1, 1), _only(2)),
    Sample("formats_differ", (rand(2, 4, 5, 6, layout="channels_last"), X, W, 1, 1)),
    Sample("many_images", (rand(33, 3, 4, 5), rand(33, 2, 4, 5), rand(3, 2, 3, 3), 1, 1)),
)


def ways(grad: Any, x: Any, weight: Any, *rest: Any) -> tuple[Way, ...]:
    """Divide by image; the gradients of filters and bias are sums over all."""
    each = [(d, *[None] * sum(rest[-1][1:])) for d in range(x.ndim - 3) if rest[-1][0]]
    return tuple(Way((dims[0], dims[0], None), None, audits=True, results=dims) for dims in each)


SPEC = backward_of(
    FORWARD,
    reference,
    params=tuple(Param(p.name, p.kind, p.default) for p in FORWARD.params if p.name != "bias"),
    check=lambda x, weight, *rest: check(x, weight, None, *rest),
    shape=lambda x, weight, *rest: out_shape(x, weight, None, *rest),
    same_dtype=True,
    gradients=3,
    cost=cost,
    magnitude=magnitude,
    given=_with_grad,
    samples=SAMPLES,
    errors=(
        ErrorCase(
            "rank", (GRAD, rand(3, 4), W), match=r"x must be \(C, H, W\) or \(N, C, H, W\) .* got \(3, 4\)"
        ),
    ),
    terms=terms,
    outputs=outputs,
    ways=ways,
)
