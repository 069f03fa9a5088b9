"""avg_pool2d_backward: the gradient of avg_pool2d.

    grad_x[p] = sum over the windows that contain p of grad / the window's divisor

Torch's own CPU kernel accumulates half types in half precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.ops.avg_pool2d import SAMPLES as FORWARD_SAMPLES
from nxcore.ops.avg_pool2d import require_average
from nxcore.plugin import (
    Cost,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    Window,
    dense,
    rand,
    require_memory_format,
    require_size,
    require_tensor,
)


def reference(
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
    window = Window.of_pool(size, kernel_size, stride, padding, 1, ceil_mode)
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


def check(
    grad: Any,
    size: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: Any,
    count_include_pad: Any,
    divisor_override: Any,
    memory_format: Any,
) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(grad, "grad")
    require_size(size, "size")
    if len(size) not in (3, 4):
        raise InvalidInputError(f"size must be (C, H, W) or (N, C, H, W), got {tuple(size)}", argument="size")
    require_average(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    require_memory_format(memory_format, len(size))
    window = Window.of_pool(size, kernel_size, stride, padding, 1, ceil_mode)
    wanted = (*size[:-2], *window.outputs)
    if tuple(grad.shape) != wanted:
        raise InvalidInputError(
            f"grad must have the output's shape {wanted}, got {tuple(grad.shape)}", argument="grad"
        )


def cost(grad: Any, size: Any, kernel_size: Any, *window: Any) -> Cost:
    """Count grad read once, the input's gradient written once; one addition for each tap."""
    written = torch.Size(size).numel() * grad.element_size()
    return Cost(bytes=grad.nbytes + written, flops=grad.numel() * terms(grad, size, kernel_size, *window))


def magnitude(grad: Tensor, *window: Any) -> Tensor:
    """Return the gradient of absolute values."""
    return reference(grad.abs(), *window).abs()


def terms(
    grad: Any,
    size: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: Any,
    *rest: Any,
) -> int:
    """Return the largest number of windows that share an input."""
    return Window.of_pool(size, kernel_size, stride, padding, 1, ceil_mode).taps


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient of the output's shape in front of a sample of avg_pool2d."""
    x, *window = sample.args
    given = (*window, *(None, 0, False)[len(window) - 1 :])
    outputs = Window.of_pool(x.shape, given[0], given[1], given[2], 1, given[3]).outputs
    grad = rand(*x.shape[:-2], *outputs, layout=x.layout, values=x.values)
    kwargs = {"memory_format": torch.channels_last} if x.layout == "channels_last" else {}
    return Sample(sample.name, (grad, x.shape, *window), kwargs, sample.tags)


SAMPLES = (
    *(_with_grad(s) for s in FORWARD_SAMPLES if s.name != "list_of_sizes"),
    Sample("stride_zero_grad", (rand(3, 2, 6, 8, layout="expanded"), (3, 2, 6, 8), 3, 1, 1)),
    Sample("gradient_of_a_sum", (rand(3, 2, 6, 8, layout="repeated"), (3, 2, 6, 8), 3, 1, 1)),
    Sample(
        "formats_differ",
        (rand(2, 9, 7, 6), (2, 9, 7, 6), 3, 1, 1),
        {"memory_format": torch.channels_last},
    ),
    Sample("formats_differ_back", (rand(2, 9, 7, 6, layout="channels_last"), (2, 9, 7, 6), 3, 1, 1)),
)

ERRORS = (
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

SPEC = OpSpec(
    name="avg_pool2d_backward",
    params=(
        Param("grad", "tensor"),
        Param("size", "size"),
        Param("kernel_size", "static"),
        Param("stride", "static", None),
        Param("padding", "static", 0),
        Param("ceil_mode", "static", False),
        Param("count_include_pad", "static", True),
        Param("divisor_override", "static", None),
        Param("memory_format", "static", torch.contiguous_format),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
)
