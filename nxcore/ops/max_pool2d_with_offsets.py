"""max_pool2d_with_offsets: max_pool2d, with the number of each window's largest tap for its gradient.

    out[i, j] = max over the taps on the image of x;  offsets[i, j] = the number of that tap, row by row

An offset takes one byte; torch's int64 index takes eight. The rule of ``max_pool2d`` in torch: a tap replaces
the previous maximum where it is larger, or NaN.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.max_pool2d import ERRORS, by_taps, check, outputs, ways
from nxcore.ops.max_pool2d import SAMPLES as POOL_SAMPLES
from nxcore.plugin import SAME, Cost, OpSpec, Param, TensorMeta, Window, laid_out, memory_format


def offset_dtype(window: Window) -> torch.dtype:
    """Return uint8 where every tap's number fits, else int32."""
    return torch.uint8 if window.taps <= 256 else torch.int32


def reference(
    x: Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window, and the number of its tap.

    Parameters
    ----------
    x, kernel_size, stride, padding, dilation, ceil_mode
        As in ``max_pool2d``.

    Returns
    -------
    out : Tensor
        As ``max_pool2d``.
    offsets : Tensor
        The shape and memory format of ``out``; uint8, or int32 for windows of more than 256 taps. 0 where a
        window has no element of the image.

    Raises
    ------
    InvalidInputError
        As ``max_pool2d``.

    Examples
    --------
    >>> nxcore.ops.max_pool2d_with_offsets(torch.arange(4.0).view(1, 2, 2), 2)
    (tensor([[[3.]]]), tensor([[[3]]], dtype=torch.uint8))
    """
    window = Window.of_pool(tuple(x.shape), kernel_size, stride, padding, dilation, ceil_mode)
    return by_taps(x, window, offset_dtype(window))


def _outputs(x: Any, *window: Any) -> tuple[TensorMeta, TensorMeta]:
    pool = Window.of_pool(tuple(x.shape), *window)
    shape, form = (*x.shape[:-2], *pool.outputs), memory_format(x)
    return laid_out(shape, form, x.dtype, x.device), laid_out(shape, form, offset_dtype(pool), x.device)


def cost(x: Any, *window: Any) -> Cost:
    """Count x read once, maxima and offsets written once; one comparison for each tap."""
    pool = Window.of_pool(tuple(x.shape), *window)
    count = outputs(x, *window)
    written = count * (x.element_size() + offset_dtype(pool).itemsize)
    return Cost(bytes=x.nbytes + written, flops=count * pool.taps)


def magnitude(x: Tensor, *window: Any) -> Any:
    """Return the reference's result, since it never rounds."""
    return reference(x, *window)


def with_indices(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run torch's own forward pass, with indices."""
    window = Window.of_pool(tuple(x.shape), kernel_size, stride, padding, dilation, ceil_mode)
    out, indices = torch.ops.aten.max_pool2d_with_indices(
        x, window.kernel, window.stride, window.padding, window.dilation, bool(ceil_mode)
    )
    return out, indices


SPEC = OpSpec(
    name="max_pool2d_with_offsets",
    params=(
        Param("x", "tensor"),
        Param("kernel_size", "static"),
        Param("stride", "static", None),
        Param("padding", "static", 0),
        Param("dilation", "static", 1),
        Param("ceil_mode", "static", False),
    ),
    reference=reference,
    check=check,
    holds="larger",
    cost=cost,
    samples=tuple(s for s in POOL_SAMPLES if not s.kwargs),
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda *args: 1,
    exact=True,
    yardsticks=MappingProxyType({"with_indices": with_indices}),
    outputs=_outputs,
    autocast=SAME,
    ways=ways,
)
