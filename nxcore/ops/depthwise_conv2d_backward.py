"""depthwise_conv2d_backward: the gradients of depthwise_conv2d, to the image and to the filters.

    grad_x[n, c, row, column] = sum over the outputs that read it of weight * grad
    grad_weight[c, 0, a, b]   = sum over n, i, j of grad[n, c, i, j] * x[n, c, row, column]

Torch's own CPU kernel accumulates float16 in float16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.ops.depthwise_conv2d import SPEC as FORWARD
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

BOTH = (True, True)
Pairs = int | tuple[int, int]


def reference(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Pairs = 1,
    padding: Pairs | str = 0,
    dilation: Pairs = 1,
    output_mask: tuple[bool, bool] = BOTH,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of ``depthwise_conv2d``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output.
    x, weight, stride, padding, dilation
        As in ``depthwise_conv2d``.
    output_mask : (bool, bool)
        Which gradients to compute; the other is None.

    Returns
    -------
    x_grad, weight_grad : Tensor
        Shapes and dtypes of ``x`` and ``weight``; ``x_grad`` in the memory format of ``x``.

    Raises
    ------
    InvalidInputError
        As ``depthwise_conv2d``; or if ``grad`` isn't of the output's shape.

    Examples
    --------
    >>> x, weight = torch.ones(1, 2, 2), torch.ones(1, 1, 2, 2)
    >>> nxcore.ops.depthwise_conv2d_backward(torch.ones(1, 1, 1), x, weight)[0]
    tensor([[[1., 1.],
             [1., 1.]]])
    """
    seen = window_of(x, weight, stride, padding, dilation)
    left, right, above, below = seen.padded
    steps, gaps = list(seen.stride), list(seen.dilation)
    image = x if x.ndim == 4 else x.unsqueeze(0)
    incoming = grad if grad.ndim == 4 else grad.unsqueeze(0)
    pads, cut = list(seen.padding), (0, 0)
    if padding == "same" and (
        right > left or below > above
    ):  # torch's backward supports only symmetric padding
        cut = (below - above, right - left)
        image = torch.nn.functional.pad(image, (0, cut[1], 0, cut[0]))
    x_grad, weight_grad, _ = torch.ops.aten.convolution_backward(
        incoming,
        image,
        weight,
        None,
        steps,
        pads,
        gaps,
        False,
        [0, 0],
        image.shape[1],
        [bool(output_mask[0]), bool(output_mask[1]), False],
    )
    if x_grad is not None:
        x_grad = x_grad[..., : x.shape[-2], : x.shape[-1]]
        x_grad = x_grad if x.ndim == 4 else x_grad.squeeze(0)
        # The cut leaves gaps, and torch's meta device chooses another format where grad's differs.
        x_grad = dense(x_grad, memory_format(x))
    return x_grad, weight_grad


def outputs(grad: Any, x: Any, weight: Any, *rest: Any) -> tuple[TensorMeta | None, ...] | None:
    """Describe the gradients; None where torch chooses the format of the filters' gradient."""
    form = memory_format(x)
    if rest[-1][1] and not (weight.is_contiguous() and memory_format(grad) == form):
        return None  # of filters with one channel, either format is row-major
    described = [laid_out(tuple(t.shape), form, t.dtype, t.device) for t in (x, weight)]
    return tuple(meta if wanted else None for meta, wanted in zip(described, rest[-1], strict=True))


def cost(grad: Any, x: Any, weight: Any, *rest: Any) -> Cost:
    """Count grad read once, x once for the filters' gradient, the requested gradients written."""
    *where, mask = rest
    moved = grad.nbytes * any(mask)
    moved += (x.nbytes + weight.nbytes) * (bool(mask[0]) + bool(mask[1]))
    flops = 2 * grad.numel() * window_of(x, weight, *where).taps * (bool(mask[0]) + bool(mask[1]))
    return Cost(bytes=moved, flops=flops)


def magnitude(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    """Return the gradients of absolute values."""
    return reference(grad.abs(), x.abs(), weight.abs(), *rest)


def terms(grad: Any, x: Any, weight: Any, *rest: Any) -> int:
    """Return the outputs of a channel, or the taps where only the image's gradient is requested."""
    *where, mask = rest
    taps = window_of(x, weight, *where).taps
    return max(taps, int(grad.numel()) // int(weight.shape[0])) if mask[1] else taps


def shape(x: Any, *rest: Any) -> tuple[int, ...]:
    """Return the shape of the output."""
    return (*x.shape[:-2], *window_of(x, *rest).outputs)


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient of the output's shape in front of a sample of depthwise_conv2d."""
    x, weight, *rest = sample.args
    outputs = Window.of_convolution(x.shape, weight.shape[-2:], *rest).outputs
    layout: Layout = "contiguous" if x.layout == "expanded" else x.layout
    grad = rand(*x.shape[:-2], *outputs, layout=layout, values=x.values)
    return Sample(sample.name, (grad, x, weight, *rest), {}, sample.tags)


IMAGE, FILTER = rand(2, 3, 7, 9), rand(3, 1, 3, 3)

SAMPLES = (
    Sample("stride_zero_grad", (rand(2, 3, 7, 9, layout="expanded"), IMAGE, FILTER, 1, 1)),
    Sample("gradient_of_a_sum", (rand(2, 3, 7, 9, layout="repeated"), IMAGE, FILTER, 1, 1)),
    Sample("only_the_image", (rand(2, 3, 7, 9), IMAGE, FILTER, 1, 1), {"output_mask": (True, False)}),
    Sample("only_the_filters", (rand(2, 3, 7, 9), IMAGE, FILTER, 1, 1), {"output_mask": (False, True)}),
    Sample(
        "formats_differ",
        (rand(2, 9, 7, 6), rand(2, 9, 7, 6, layout="channels_last"), rand(9, 1, 3, 3), 1, 1),
    ),
    Sample("many_images", (rand(33, 2, 6, 7), rand(33, 2, 6, 7), rand(2, 1, 3, 3), 1, 1)),
    # In larger images every filter element meets a NaN, so no result would stay finite. Only x has NaNs:
    # torch's own kernels differ in whether the padding's zeros times NaN are NaN.
    Sample(
        "nan_past_the_outputs",
        (rand(1, 1, 2, 3), rand(1, 1, 2, 3, values="nan"), rand(1, 1, 3, 3), 1, 1),
    ),
    Sample(
        "nan_past_the_outputs_channels_last",
        (
            rand(1, 2, 1, 3, layout="channels_last"),
            rand(1, 2, 1, 3, layout="channels_last", values="nan"),
            rand(2, 1, 3, 3),
            1,
            1,
        ),
    ),
)

SPEC = backward_of(
    FORWARD,
    reference,
    shape=shape,
    same_dtype=True,
    gradients=2,
    cost=cost,
    magnitude=magnitude,
    given=_with_grad,
    samples=SAMPLES,
    terms=terms,
    outputs=outputs,
)
