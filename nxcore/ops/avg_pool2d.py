"""avg_pool2d: the mean of each window of an image.

    out[i, j] = sum over the taps on the image of x / divisor

The divisor is ``divisor_override`` where given, else the window's size on the padded image, or on the image
without padding where ``count_include_pad`` is False. Semantics of ``torch.nn.functional.avg_pool2d``. The
gradient, whose half types torch's own CPU kernel accumulates in half precision:

    grad_x[p] = sum over the windows that contain p of grad / the window's divisor
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.max_pool2d import IMAGE_SIZE, MEMORY_FORMAT, pooled, require_image_size, require_window, ways
from nxcore.plugin import (
    DEGENERATE,
    SAME,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    Window,
    backward_of,
    brief,
    dense,
    laid_out,
    memory_format,
    rand,
    require_flag,
    require_image,
    require_memory_format,
    require_tensor,
)


def reference(
    x: Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W) or (C, H, W).
    kernel_size : int or (int, int)
        The window's height and width.
    stride : int or (int, int), optional
        The step from window to window; by default the window's size.
    padding : int or (int, int), default 0
        Zeros on each side; at most half of the window.
    ceil_mode : bool, default False
        Whether to round the output's size up, so that a window may reach beyond the padding.
    count_include_pad : bool, default True
        Whether the divisor counts the padding.
    divisor_override : int, optional
        The divisor.

    Returns
    -------
    Tensor
        Shape (N, C, H', W') or (C, H', W'), dtype and memory format of ``x``.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't an image, or an argument is out of range.

    Examples
    --------
    >>> nxcore.ops.avg_pool2d(torch.arange(16.0).view(1, 4, 4), 2)
    tensor([[[ 2.5000,  4.5000],
             [10.5000, 12.5000]]])
    """
    return functional.avg_pool2d(
        x, kernel_size, stride or kernel_size, padding, ceil_mode, count_include_pad, divisor_override
    )


def check(x: Any, *window: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x", floating=False)
    require_image(x)
    require_average(*window)
    _window(x.shape, *window[:4])


def require_average(
    kernel_size: Any, stride: Any, padding: Any, ceil_mode: Any, count_include_pad: Any, divisor: Any
) -> None:
    """Raise unless torch accepts the window and the divisor."""
    require_window(kernel_size, stride, padding, 1, ceil_mode)
    require_flag(count_include_pad, "count_include_pad")
    if divisor is None:
        return
    if not isinstance(divisor, int) or isinstance(divisor, bool) or divisor == 0:
        raise InvalidInputError(
            f"divisor_override must be an integer other than 0, got {brief(divisor)}",
            argument="divisor_override",
        )
    if not -(2**63) <= divisor < 2**63:
        raise InvalidInputError(
            f"divisor_override must fit 64 bits, got {divisor}", argument="divisor_override"
        )


def _window(size: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: Any, *divisor: Any) -> Window:
    return Window.of_pool(tuple(size), kernel_size, stride, padding, 1, ceil_mode)


def outputs(x: Any, *window: Any) -> TensorMeta:
    """Describe the means; shapes by floor division alone, since a compiler's sizes are symbols."""
    return laid_out(pooled(x.shape, _window(x.shape, *window)), memory_format(x), x.dtype, x.device)


def cost(x: Any, *window: Any) -> Cost:
    """Count x read once, the means written once; one addition for each tap."""
    pool = _window(x.shape, *window)
    outputs = torch.Size(pooled(x.shape, pool)).numel()
    return Cost(bytes=x.nbytes + outputs * x.element_size(), flops=outputs * pool.taps)


def magnitude(x: Tensor, *window: Any) -> Tensor:
    """Return the mean of absolute values."""
    return reference(x.abs(), *window).abs()


def terms(x: Any, *window: Any) -> int:
    """Return the number of taps of the window."""
    return _window(x.shape, *window).taps


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, *window: Any) -> tuple[Any, ...]:
    return grad, tuple(x.shape), *window, memory_format(x)


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("darts", (rand(2, 3, 9, 11), 3, 1, 1, False, False), tags=SMOKE),
    Sample("reduction_cell", (rand(2, 3, 8, 10), 3, 2, 1, False, False), tags=SMOKE),
    Sample("channels_last", (rand(2, 9, 7, 6, layout="channels_last"), 3, 1, 1), tags=SMOKE),
    Sample("rectangle", (rand(1, 2, 9, 12), (2, 3), (2, 1), (1, 0)), tags=SMOKE),
    Sample("default_stride", (rand(1, 2, 9, 12), 3)),
    Sample("list_of_sizes", (rand(1, 2, 9, 12), [3, 2], [2, 2])),
    Sample("ceil_mode", (rand(1, 2, 8, 9), 3, 2, 1, True)),
    Sample("ceil_mode_image_only", (rand(1, 2, 8, 9), 3, 2, 1, True, False)),
    Sample("ceil_mode_window_dropped", (rand(1, 2, 5, 5), 2, 3, 1, True)),
    Sample("divisor", (rand(1, 2, 6, 7), 3, 1, 1, False, False, 5)),
    Sample("negative_divisor", (rand(1, 2, 6, 7), 2, 2, 0, False, True, -3)),
    Sample("window_as_large_as_the_image", (rand(2, 3, 5, 7), (5, 7))),
    Sample("window_of_one", (rand(1, 2, 5, 6), 1, 2)),
    Sample("seven", (rand(1, 3, 14, 17), 7, 1, 3, False, False)),
    Sample("window_too_large_to_unroll", (rand(1, 2, 13, 14), (12, 11), (1, 2), (6, 5))),
    Sample("one_plane", (rand(3, 9, 8), 3, 1, 1)),
    Sample("one_channel", (rand(2, 1, 6, 9), 3, 1, 1)),
    Sample("one_pixel", (rand(2, 3, 1, 1), 1)),
    Sample("no_images", (rand(0, 3, 6, 6), 3), tags=DEGENERATE),
    Sample("odd_storage_offset", (rand(1, 2, 8, 12, layout="sliced"), 3, 1, 1)),
    Sample("gaps_in_memory", (rand(1, 2, 8, 12, layout="strided"), 3, 1, 1)),
    Sample("transposed", (rand(2, 3, 6, 7, layout="transposed"), 3, 1, 1)),
    Sample("expanded", (rand(3, 2, 6, 8, layout="expanded"), 3, 1, 1)),
    Sample("wide_rows", (rand(1, 1, 5, 133), 3, 1, 1)),
    Sample("nan", (rand(1, 4, 9, 8, values="nan"), 3, 1, 1), tags=SMOKE),
    Sample("inf", (rand(1, 2, 8, 9, values="inf"), 2, 2)),
    Sample("cifar_k3", (rand(64, 16, 32, 32), 3, 1, 1, False, False), tags=BENCH),
    Sample("cifar_k3_stride2", (rand(64, 32, 32, 32), 3, 2, 1, False, False), tags=BENCH),
    Sample("imagenet_k3", (rand(128, 64, 56, 56), 3, 1, 1, False, False), tags=BENCH | {"huge"}),
    Sample("imagenet_k7", (rand(128, 64, 56, 56), 7, 1, 3, False, False), tags=BENCH | {"huge"}),
    Sample(
        "imagenet_k3_channels_last",
        (rand(128, 64, 56, 56, layout="channels_last"), 3, 1, 1, False, False),
        tags=BENCH | {"huge"},
    ),
)

ERRORS = (
    ErrorCase("rank", (rand(3, 4), 2), match=r"x must be \(C, H, W\) or \(N, C, H, W\) .* got \(3, 4\)"),
    ErrorCase("no_channels", (rand(2, 0, 4, 4), 2), match="nothing but N of size 0"),
    ErrorCase("kernel", (rand(1, 2, 4, 4), 0), match="kernel_size must be at least 1, got 0"),
    ErrorCase("kernel_type", (rand(1, 2, 4, 4), 2.5), match="kernel_size must be an integer or a pair"),
    ErrorCase("stride", (rand(1, 2, 4, 4), 2, 0), match="stride must be at least 1, got 0"),
    ErrorCase("padding", (rand(1, 2, 4, 4), 2, 1, 2), match=r"padding must be at most half of kernel_size"),
    ErrorCase("too_small", (rand(1, 2, 4, 4), 5), match="x must be at least as large as the window"),
    ErrorCase(
        "divisor",
        (rand(1, 2, 4, 4), 2),
        match="divisor_override must be an integer other than 0, got 0",
        kwargs={"divisor_override": 0},
    ),
    ErrorCase("flag", (rand(1, 2, 4, 4), 2, 1, 0, None), match="ceil_mode must be True or False, got None"),
    ErrorCase(
        "huge_divisor",
        (rand(1, 2, 4, 4), 2),
        match="divisor_override must fit 64 bits",
        kwargs={"divisor_override": 2**63},
    ),
    ErrorCase("not_a_tensor", (1.0, 2), match="x must be a tensor, got float"),
)

SPEC = OpSpec(
    name="avg_pool2d",
    params=(
        Param("x", "tensor"),
        Param("kernel_size", "static"),
        Param("stride", "static", None),
        Param("padding", "static", 0),
        Param("ceil_mode", "static", False),
        Param("count_include_pad", "static", True),
        Param("divisor_override", "static", None),
    ),
    reference=reference,
    check=check,
    holds="larger",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    ways=ways,
    gradient=Gradient("avg_pool2d_backward", _backward),
    outputs=outputs,
    autocast=SAME,
)


def gradient(
    grad: Tensor,
    size: tuple[int, ...],
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Return the gradient of ``avg_pool2d``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output, floating.
    size : tuple of int
        The shape of the input.
    kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        As in ``avg_pool2d``.
    memory_format : torch.memory_format
        The memory format of the result, which is the input's.

    Returns
    -------
    Tensor
        Shape ``size``, dtype of ``grad``.

    Raises
    ------
    InvalidInputError
        As ``avg_pool2d``; or if ``grad`` isn't of the output's shape.

    Examples
    --------
    >>> nxcore.ops.avg_pool2d_backward(torch.ones(1, 1, 1), (1, 2, 2), 2)
    tensor([[[0.2500, 0.2500],
             [0.2500, 0.2500]]])
    """
    window = _window(size, kernel_size, stride, padding, ceil_mode)
    # Torch's CUDA kernel for channels_last ignores the padding (pytorch/pytorch#188344); the other does not.
    astray = grad.is_cuda and window.padding != (0, 0)
    computed = torch.contiguous_format if astray else memory_format
    # Only shape and strides are read.
    stand_in = torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=computed)
    x_grad: Tensor = torch.ops.aten.avg_pool2d_backward(
        grad,
        stand_in,
        window.kernel,
        window.stride,
        window.padding,
        bool(ceil_mode),
        bool(count_include_pad),
        divisor_override,
    )
    return dense(x_grad, memory_format)


def gradient_check(size: Any, *rest: Any) -> None:
    """Raise unless the gradient is defined for the arguments after the incoming one."""
    *window, form = rest
    require_image_size(size)
    require_average(*window)
    require_memory_format(form, len(size))


def gradient_outputs(grad: Any, size: Any, *rest: Any) -> TensorMeta:
    """Describe the gradient."""
    return laid_out(tuple(size), rest[-1], grad.dtype, grad.device)


def gradient_cost(grad: Any, size: Any, *window: Any) -> Cost:
    """Count grad read once, the input's gradient written once; one addition for each tap."""
    written = torch.Size(size).numel() * grad.element_size()
    return Cost(bytes=grad.nbytes + written, flops=grad.numel() * gradient_terms(grad, size, *window))


def gradient_magnitude(grad: Tensor, *window: Any) -> Tensor:
    """Return the gradient of absolute values."""
    return gradient(grad.abs(), *window).abs()


def gradient_terms(grad: Any, size: Any, *window: Any) -> int:
    """Return the largest number of windows that share an input."""
    return _window(size, *window).taps


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient of the output's shape, layout and values in front of a sample's size and window."""
    x, *window = sample.args
    grad = rand(*pooled(x.shape, _window(*SPEC.bind(x.shape, *window))), layout=x.layout, values=x.values)
    kwargs = {"memory_format": torch.channels_last} if x.layout == "channels_last" else {}
    return Sample(sample.name, (grad, x.shape, *window), kwargs, sample.tags)


GRADIENT_SAMPLES = (
    Sample("stride_zero_grad", (rand(3, 2, 6, 8, layout="expanded"), (3, 2, 6, 8), 3, 1, 1)),
    Sample("gradient_of_a_sum", (rand(3, 2, 6, 8, layout="repeated"), (3, 2, 6, 8), 3, 1, 1)),
    Sample(
        "formats_differ",
        (rand(2, 9, 7, 6), (2, 9, 7, 6), 3, 1, 1),
        {"memory_format": torch.channels_last},
    ),
    Sample("formats_differ_back", (rand(2, 9, 7, 6, layout="channels_last"), (2, 9, 7, 6), 3, 1, 1)),
)

GRADIENT_ERRORS = (
    ErrorCase("shape", (rand(1, 2, 3, 3), (1, 2, 4, 4), 2), match=r"output's shape \(1, 2, 2, 2\)"),
    ErrorCase("rank", (rand(2, 2), (4, 4), 2), match=r"size must be \(C, H, W\) or \(N, C, H, W\)"),
    ErrorCase("kernel", (rand(1, 2, 4, 4), (1, 2, 4, 4), 0), match="kernel_size must be at least 1, got 0"),
    ErrorCase(
        "memory_format",
        (rand(1, 2, 2, 2), (1, 2, 4, 4), 2),
        match="memory_format must be contiguous_format or channels_last",
        kwargs={"memory_format": torch.preserve_format},
    ),
    ErrorCase("not_a_size", (rand(1, 2, 2, 2), 4, 2), match="size must be a sequence of integers, got 4"),
    ErrorCase("not_a_tensor", (1.0, (1, 2, 4, 4), 2), match="grad must be a tensor, got float"),
)

BACKWARD = backward_of(
    SPEC,
    gradient,
    params=(IMAGE_SIZE, *SPEC.params[1:], MEMORY_FORMAT),
    check=gradient_check,
    shape=lambda size, *window: pooled(size, _window(size, *window)),
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    given=_with_grad,
    samples=GRADIENT_SAMPLES,
    errors=GRADIENT_ERRORS,
    terms=gradient_terms,
    outputs=gradient_outputs,
    ways=lambda grad, *rest: tuple(Way((d,), d, audits=True) for d in range(grad.ndim - 2)),
)
