"""max_pool2d_backward: the gradient of max_pool2d, from the largest taps.

    grad_x[p] = sum over the windows whose largest tap is at p of grad

A gather: each input reads the windows that contain it, so the order of summation is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from nxcore.ops.max_pool2d import IMAGE_SIZE, pooled, require_image_size, require_window
from nxcore.ops.max_pool2d import SPEC as POOL
from nxcore.ops.max_pool2d_with_offsets import offset_dtype
from nxcore.plugin import (
    Cost,
    ErrorCase,
    InvalidInputError,
    Layout,
    Param,
    Sample,
    TensorMeta,
    Way,
    Window,
    backward_of,
    dense,
    laid_out,
    memory_format,
    rand,
    require_shape,
    require_tensor,
)


def reference(
    grad: Tensor,
    offsets: Tensor,
    size: tuple[int, ...],
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the gradient of ``max_pool2d``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output, floating.
    offsets : Tensor
        As ``max_pool2d_with_offsets`` returns them.
    size : tuple of int
        The shape of the input.
    kernel_size, stride, padding, dilation, ceil_mode
        As in ``max_pool2d``.

    Returns
    -------
    Tensor
        Shape ``size``, dtype of ``grad``, memory format of ``offsets``.

    Raises
    ------
    InvalidInputError
        As ``max_pool2d``; or if ``grad`` or ``offsets`` isn't of the output's shape.

    Examples
    --------
    >>> offsets = torch.tensor([[[3]]], dtype=torch.uint8)
    >>> nxcore.ops.max_pool2d_backward(torch.ones(1, 1, 1), offsets, (1, 2, 2), 2)
    tensor([[[0., 0.],
             [0., 1.]]])
    """
    window = Window.of_pool(size, kernel_size, stride, padding, dilation, ceil_mode)
    wide = grad.double() if grad.dtype is torch.float64 else grad.float()
    left, right, above, below = window.padded
    height, width = window.image
    shape = (*size[:-2], height + above + below, width + left + right)
    total = wide.new_zeros(shape)  # batched where grad is
    for tap, at in enumerate(window.slices()):
        total[at] += torch.where(offsets == tap, wide, 0)
    inside = total[..., above : above + height, left : left + width]
    return dense(inside.to(grad.dtype), memory_format(offsets))


def indices(offsets: Tensor, window: Window) -> Tensor:
    """Return torch's int64 indices, ``row * W + column``, each on the plane."""
    tap = offsets.long()
    row = torch.arange(window.outputs[0], device=offsets.device).view(-1, 1) * window.stride[0]
    column = torch.arange(window.outputs[1], device=offsets.device) * window.stride[1]
    row = row - window.padding[0] + tap // window.kernel[1] * window.dilation[0]
    column = column - window.padding[1] + tap % window.kernel[1] * window.dilation[1]
    # Invalid offsets must not be scattered outside the plane: torch checks no index.
    return (row * window.image[1] + column).clamp_(0, window.image[0] * window.image[1] - 1)


def _scattered(grad: Tensor, offsets: Tensor, places: Tensor, size: Any, window: Window, ceil: Any) -> Tensor:
    form = memory_format(offsets)
    # Only shape and strides are read.
    stand_in = torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=form)
    x_grad: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        grad, stand_in, window.kernel, window.stride, window.padding, window.dilation, bool(ceil), places
    )
    return x_grad


def by_indices(
    grad: Tensor,
    offsets: Tensor,
    size: tuple[int, ...],
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Convert the offsets to torch's indices, and scatter as torch does."""
    window = Window.of_pool(size, kernel_size, stride, padding, dilation, ceil_mode)
    if window.barren:  # a window without an element has no right index
        return reference(grad, offsets, size, kernel_size, stride, padding, dilation, ceil_mode)
    return _scattered(grad, offsets, indices(offsets, window), size, window, ceil_mode)


_KEPT: Any = WeakTensorKeyDictionary()


def with_indices(
    grad: Tensor,
    offsets: Tensor,
    size: tuple[int, ...],
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Run torch's own backward, with indices from the forward pass."""
    window = Window.of_pool(size, kernel_size, stride, padding, dilation, ceil_mode)
    if offsets not in _KEPT:
        _KEPT[offsets] = indices(offsets, window)
    return _scattered(grad, offsets, _KEPT[offsets], size, window, ceil_mode)


def check(offsets: Any, size: Any, *window: Any) -> None:
    """Raise unless the operator is defined for the arguments after the gradient."""
    require_tensor(offsets, "offsets", floating=False)
    kernel_size, stride, padding, dilation, ceil_mode = window
    require_window(kernel_size, stride, padding, dilation, ceil_mode)
    require_image_size(size)
    pool = Window.of_pool(size, *window)
    require_shape(offsets, pooled(size, pool), "offsets")
    if offsets.dtype is not offset_dtype(pool):
        raise InvalidInputError(
            f"offsets must have dtype {offset_dtype(pool)} for {pool.taps} taps, got {offsets.dtype}",
            argument="offsets",
        )


def _outputs(grad: Any, offsets: Any, size: Any, *window: Any) -> TensorMeta:
    return laid_out(size, memory_format(offsets), grad.dtype, grad.device)


def cost(grad: Any, offsets: Any, size: Any, kernel_size: Any, *window: Any) -> Cost:
    """Count grad and the offsets read once, the gradient written once; one comparison for each tap."""
    written = torch.Size(size).numel() * grad.element_size()
    flops = grad.numel() * Window.of_pool(size, kernel_size, *window).taps
    return Cost(bytes=grad.nbytes + offsets.nbytes + written, flops=flops)


def magnitude(grad: Tensor, *rest: Any) -> Tensor:
    """Return the gradient of absolute values."""
    return reference(grad.abs(), *rest)


def terms(grad: Any, offsets: Any, size: Any, kernel_size: Any, *window: Any) -> int:
    """Return the largest number of windows that share an input."""
    return Window.of_pool(size, kernel_size, *window).taps


@dataclass(frozen=True, slots=True)
class Offsets:
    """A sketch of offsets: in each window, a random tap on the image; 0 where there is none.

    Attributes
    ----------
    shape : tuple of int
        The shape of the output.
    window : Window
    layout : str
        ``contiguous`` or ``channels_last``.
    """

    shape: tuple[int, ...]
    window: Window
    layout: str = "contiguous"

    def build(self, device: torch.device, dtype: torch.dtype, seed: int) -> Tensor:
        """Build the tensor. The same seed gives the same taps on every device."""
        generator = torch.Generator().manual_seed(seed)
        window, parts = self.window, []
        for axis in (0, 1):
            first = torch.arange(window.outputs[axis]) * window.stride[axis] - window.padding[axis]
            place = first.view(-1, 1) + torch.arange(window.kernel[axis]) * window.dilation[axis]
            inside = ((place >= 0) & (place < window.image[axis])).double()
            inside[:, 0] += inside.sum(1) == 0
            each = torch.Size(self.shape).numel() // max(window.outputs[axis], 1)
            taken = torch.multinomial(inside, max(each, 1), replacement=True, generator=generator)
            rest = [n for i, n in enumerate(self.shape) if i != len(self.shape) - 2 + axis]
            parts.append(taken[:, :each].view(window.outputs[axis], *rest).movedim(0, len(rest) - 1 + axis))
        offsets = (parts[0] * window.kernel[1] + parts[1]).to(offset_dtype(window)).to(device)
        last = self.layout == "channels_last"
        return offsets.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def sketches(grad: Any, offsets: Any, size: Any, *window: Any) -> dict[str, Offsets]:
    """Return the sketch of valid offsets: taps on the image."""
    return {"offsets": Offsets(offsets.shape, Window.of_pool(size, *window))}


def _with_grad(sample: Sample) -> Sample | None:
    """Put a gradient of the output's shape, and offsets, in front of a sample's size and window."""
    if sample.kwargs or sample.name in ("ties", "all_negative"):  # indices, and values of the image
        return None
    x, *rest = sample.args
    window = Window.of_pool(x.shape, *rest)
    shape = (*x.shape[:-2], *window.outputs)
    layout: Layout = "contiguous" if x.layout == "expanded" else x.layout
    grad = rand(*shape, layout=layout, values=x.values if x.values != "zeros" else "normal")
    taken = Offsets(shape, window, "channels_last" if layout == "channels_last" else "contiguous")
    return Sample(sample.name, (grad, taken, x.shape, *rest), {}, sample.tags)


def _same(name: str, size: tuple[int, ...], layout: Layout, form: str = "contiguous") -> Sample:
    window = Window.of_pool(size[-2:], 3, 1, 1)
    return Sample(name, (rand(*size, layout=layout), Offsets(size, window, form), size, 3, 1, 1))


SAMPLES = (
    _same("stride_zero_grad", (3, 2, 6, 8), "expanded"),
    _same("gradient_of_a_sum", (3, 2, 6, 8), "repeated"),
    _same("formats_differ", (2, 9, 7, 6), "contiguous", "channels_last"),
)

_TAPS = Offsets((1, 2, 2, 2), Window.of_pool((4, 4), 2))

ERRORS = (
    ErrorCase(
        "dtype",
        (rand(1, 2, 2, 2), rand(1, 2, 2, 2, dtype=torch.int64), (1, 2, 4, 4), 2),
        match="offsets must have dtype torch.uint8 for 4 taps, got torch.int64",
    ),
    ErrorCase("rank", (rand(2, 2), _TAPS, (4, 4), 2), match=r"size must be \(C, H, W\) or \(N, C, H, W\)"),
)

SPEC = backward_of(
    POOL,
    reference,
    params=(Param("offsets", "tensor"), IMAGE_SIZE, *POOL.params[1:-1]),
    check=check,
    shape=lambda offsets, *_: tuple(offsets.shape),
    cost=cost,
    magnitude=magnitude,
    given=_with_grad,
    samples=SAMPLES,
    errors=ERRORS,
    terms=terms,
    idioms=MappingProxyType({"by_indices": by_indices}),
    yardsticks=MappingProxyType({"with_indices": with_indices}),
    sketches=sketches,
    outputs=_outputs,
    ways=lambda grad, *rest: tuple(Way((d, d), d, audits=True) for d in range(grad.ndim - 2)),
)
