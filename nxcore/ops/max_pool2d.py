"""max_pool2d: the largest element of each window of an image.

    out[i, j] = max over the taps on the image of x

Semantics of ``torch.nn.functional.max_pool2d``: NaN is larger than anything, the first of equals counts.
Where a gradient is needed, ``max_pool2d_with_offsets`` runs in its place, and saves one byte for each output.
A window without an element of the image yields minus infinity and has no gradient. Torch's own backward
writes outside its memory there, so the reference avoids it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

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
    dense,
    laid_out,
    memory_format,
    pair,
    rand,
    require_flag,
    require_image,
    require_integers,
    require_size,
    require_tensor,
)


def reference(
    x: Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the largest element of each window, and on request its position.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, H, W) or (C, H, W).
    kernel_size : int or (int, int)
        The window's height and width.
    stride : int or (int, int), optional
        The step from window to window; by default the window's size.
    padding : int or (int, int), default 0
        Minus infinity on each side; at most half of the window.
    dilation : int or (int, int), default 1
        The step from tap to tap.
    ceil_mode : bool, default False
        Whether to round the output's size up, so that a window may reach beyond the padding.
    return_indices : bool, default False
        Whether to return the position of each maximum too.

    Returns
    -------
    out : Tensor
        Shape (N, C, H', W') or (C, H', W'), dtype and memory format of ``x``.
    indices : Tensor
        int64, only with ``return_indices``: ``row * W + column`` on the plane. For a window without an
        element of the image it is torch's, which may be outside the plane.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't an image, or an argument is out of range.

    Examples
    --------
    >>> nxcore.ops.max_pool2d(torch.arange(16.0).view(1, 4, 4), 2)
    tensor([[[ 5.,  7.],
             [13., 15.]]])
    """
    pool: Any = functional.max_pool2d  # torch's annotations require a literal flag
    flags = {"ceil_mode": ceil_mode, "return_indices": return_indices}
    # Without dilation every window has an element, so the shape is not read.
    if dilation not in (1, (1, 1)) and x.is_floating_point():
        window = Window.of_pool(tuple(x.shape), kernel_size, stride, padding, dilation, ceil_mode)
        if window.barren:  # torch's index of an empty window is outside the plane
            out = by_taps(x, window)[0]
            given = (x.detach(), kernel_size, stride or kernel_size, padding, dilation)
            return (out, pool(*given, **flags)[1]) if return_indices else out
    result: Tensor | tuple[Tensor, Tensor] = pool(
        x, kernel_size, stride or kernel_size, padding, dilation, **flags
    )
    return result


def by_taps(x: Tensor, window: Window, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window and the number of its tap, in ``dtype``.

    Written in torch's differentiable operators, without an index. The number is 0 where a window has no
    element of the image.
    """
    wide = functional.pad(x, window.padded, value=-torch.inf if x.dtype.is_floating_point else 0)
    image = functional.pad(torch.ones_like(x, dtype=torch.bool), window.padded, value=False)
    best: Tensor | None = None
    for tap, at in enumerate(window.slices()):
        value, inside = wide[at], image[at]
        if best is None:
            best, seen = value, inside
            offsets = torch.zeros(best.shape, dtype=dtype, device=x.device)
            continue
        larger = inside & (~seen | (value > best) | value.isnan())
        best, seen = torch.where(larger, value, best), seen | inside
        offsets = torch.where(larger, torch.full_like(offsets, tap), offsets)
    assert best is not None  # noqa: S101  a window has a tap
    form = memory_format(x)
    return dense(best, form), dense(offsets, form)


def require_window(kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any) -> None:
    """Raise unless the pool's window has small integers; without a stride, it is the kernel's size."""
    absent = stride is None or (isinstance(stride, tuple | list) and not stride)
    steps = kernel_size if absent else stride
    for name, value in zip(
        ("kernel_size", "stride", "padding", "dilation"), (kernel_size, steps, padding, dilation), strict=True
    ):
        require_integers(value, name)
    height, width = pair(kernel_size, "kernel_size")
    if height * width >= 2**31:
        raise InvalidInputError(
            f"kernel_size must have fewer than 2**31 taps, got {kernel_size}", argument="kernel_size"
        )
    require_flag(ceil_mode, "ceil_mode")


IMAGE_SIZE = Param("size", "size")
MEMORY_FORMAT = Param("memory_format", "static", torch.contiguous_format)


def require_image_size(size: Any) -> None:
    """Raise unless ``size``, an argument of a pool's gradient, is an image's."""
    require_size(size, "size")
    if len(size) not in (3, 4):
        raise InvalidInputError(f"size must be (C, H, W) or (N, C, H, W), got {tuple(size)}", argument="size")


def pooled(size: Any, window: Window) -> tuple[int, ...]:
    """Return the shape of a pool's result, from the image's."""
    return (*size[:-2], *window.outputs)


def check(
    x: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
    return_indices: Any = False,
) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x", floating=False)
    require_image(x)
    require_window(kernel_size, stride, padding, dilation, ceil_mode)
    require_flag(return_indices, "return_indices")
    Window.of_pool(tuple(x.shape), kernel_size, stride, padding, dilation, ceil_mode)


def outputs(x: Any, *window: Any) -> int:
    """Return the number of outputs."""
    return torch.Size((*x.shape[:-2], *Window.of_pool(tuple(x.shape), *window[:5]).outputs)).numel()


def _described(x: Any, *window: Any) -> TensorMeta | None:
    """Describe the maxima; None where indices are requested or sizes are unknown, so that torch runs."""
    if window[5] or any(type(n) is not int for n in x.shape):
        return None
    shape = (*x.shape[:-2], *Window.of_pool(x.shape, *window[:5]).outputs)
    return laid_out(shape, memory_format(x), x.dtype, x.device)


def ways(x: Any, *window: Any) -> tuple[Way, ...]:
    """Divide by image or by channel."""
    return tuple(Way((d,), d) for d in range(x.ndim - 2))


def cost(x: Any, *window: Any) -> Cost:
    """Count x read once, maxima written once, eight bytes for each index; one comparison for each tap."""
    count, taps = outputs(x, *window), Window.of_pool(tuple(x.shape), *window[:5]).taps
    index = 8 if window[5] else 0
    return Cost(bytes=x.nbytes + count * (x.element_size() + index), flops=count * taps)


def magnitude(x: Tensor, *window: Any) -> Any:
    """Return the reference's result, since it never rounds."""
    return reference(x, *window)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, *rest: Any) -> tuple[Any, ...]:
    *window, _, offsets = rest
    return grad, offsets, tuple(x.shape), *window


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("darts", (rand(2, 3, 9, 11), 3, 1, 1), tags=SMOKE),
    Sample("reduction_cell", (rand(2, 3, 8, 10), 3, 2, 1), tags=SMOKE),
    Sample("channels_last", (rand(2, 9, 7, 6, layout="channels_last"), 3, 1, 1), tags=SMOKE),
    Sample("rectangle", (rand(1, 2, 9, 12), (2, 3), (2, 1), (1, 0)), tags=SMOKE),
    Sample("default_stride", (rand(1, 2, 9, 12), 3)),
    Sample("dilated", (rand(1, 2, 11, 12), 3, 1, 1, 2)),
    Sample("dilated_and_strided", (rand(1, 2, 11, 12), (3, 2), (2, 3), 1, (1, 3))),
    Sample("windows_off_the_image", (rand(2, 3, 11, 1), (5, 2), 2, (0, 1), 2), tags=DEGENERATE),
    Sample(
        "windows_off_the_image_ceil_mode",
        (rand(1, 2, 9, 1, layout="sliced"), 3, (2, 5), 1, (1, 2), True),
        tags=DEGENERATE,
    ),
    Sample(
        "windows_off_the_image_indices",
        (rand(1, 3, 1, 9), (2, 5), 2, (1, 0), 2),
        {"return_indices": True},
        tags=DEGENERATE,
    ),
    Sample("ceil_mode", (rand(1, 2, 8, 9), 3, 2, 1, 1, True)),
    Sample("ceil_mode_window_dropped", (rand(1, 2, 5, 5), 2, 3, 1, 1, True)),
    Sample("window_as_large_as_the_image", (rand(2, 3, 5, 7), (5, 7))),
    Sample("window_of_one", (rand(1, 2, 5, 6), 1, 2)),
    Sample("seven", (rand(1, 3, 14, 17), 7, 1, 3)),
    Sample("more_taps_than_a_byte_holds", (rand(1, 2, 19, 18), (17, 16), 1, 0)),
    Sample("window_too_large_to_unroll", (rand(1, 2, 13, 14, low=-9, high=-1), (12, 11), (1, 2), (6, 5))),
    Sample("one_plane", (rand(3, 9, 8), 3, 1, 1)),
    Sample("one_channel", (rand(2, 1, 6, 9), 3, 1, 1)),
    Sample("one_pixel", (rand(2, 3, 1, 1), 1)),
    Sample("no_images", (rand(0, 3, 6, 6), 3), tags=DEGENERATE),
    Sample("all_negative", (rand(1, 2, 6, 7, low=-9, high=-1), 3, 1, 1)),
    Sample("ties", (rand(2, 2, 6, 7, values="zeros"), 3, 1, 1), tags=DEGENERATE),
    Sample("odd_storage_offset", (rand(1, 2, 8, 12, layout="sliced"), 3, 1, 1)),
    Sample("gaps_in_memory", (rand(1, 2, 8, 12, layout="strided"), 3, 1, 1)),
    Sample("transposed", (rand(2, 3, 6, 7, layout="transposed"), 3, 1, 1)),
    Sample("expanded", (rand(3, 2, 6, 8, layout="expanded"), 3, 1, 1)),
    Sample("wide_rows", (rand(1, 1, 5, 133), 3, 1, 1)),
    Sample("nan", (rand(1, 4, 9, 8, values="nan"), 3, 1, 1), tags=SMOKE),
    Sample("nan_in_a_large_window", (rand(1, 2, 13, 14, values="nan"), (12, 11), (1, 2), (6, 5))),
    Sample("inf", (rand(1, 2, 8, 9, values="inf"), 2, 2)),
    Sample("indices", (rand(2, 3, 9, 11), 3, 1, 1), {"return_indices": True}),
    Sample("indices_of_ties", (rand(2, 2, 6, 7, values="zeros"), 3, 2, 1), {"return_indices": True}),
    Sample("indices_of_nan", (rand(1, 2, 8, 9, values="nan"), 3, 1, 1), {"return_indices": True}),
    Sample(
        "indices_channels_last",
        (rand(2, 9, 7, 6, layout="channels_last"), 3, 2, 1),
        {"return_indices": True},
    ),
    Sample("cifar_k3", (rand(64, 16, 32, 32), 3, 1, 1), tags=BENCH),
    Sample("cifar_k3_stride2", (rand(64, 32, 32, 32), 3, 2, 1), tags=BENCH),
    Sample("imagenet_k3", (rand(128, 64, 56, 56), 3, 1, 1), tags=BENCH | {"huge"}),
    Sample("imagenet_k7", (rand(128, 64, 56, 56), 7, 1, 3), tags=BENCH | {"huge"}),
    Sample(
        "imagenet_k3_channels_last",
        (rand(128, 64, 56, 56, layout="channels_last"), 3, 1, 1),
        tags=BENCH | {"huge"},
    ),
)

ERRORS = (
    ErrorCase("rank", (rand(3, 4), 2), match=r"x must be \(C, H, W\) or \(N, C, H, W\) .* got \(3, 4\)"),
    ErrorCase("no_channels", (rand(2, 0, 4, 4), 2), match="nothing but N of size 0"),
    ErrorCase("kernel", (rand(1, 2, 4, 4), 0), match="kernel_size must be at least 1, got 0"),
    ErrorCase("stride", (rand(1, 2, 4, 4), 2, 0), match="stride must be at least 1, got 0"),
    ErrorCase("padding", (rand(1, 2, 4, 4), 2, 1, 2), match=r"padding must be at most half of kernel_size"),
    ErrorCase("dilation", (rand(1, 2, 4, 4), 2, 1, 1, 0), match="dilation must be at least 1, got 0"),
    ErrorCase("too_small", (rand(1, 2, 4, 4), 3, 1, 0, 2), match="x must be at least as large as the window"),
    ErrorCase("flag", (rand(1, 2, 4, 4), 2, 1, 0, 1, 1), match="ceil_mode must be True or False, got 1"),
    ErrorCase("huge_stride", (rand(1, 2, 4, 4), 2, 2**31), match=r"stride must be below 2\*\*31"),
    ErrorCase("taps", (rand(1, 2, 4, 4), 2**30, 1, 2**29), match=r"fewer than 2\*\*31 taps, got 1073741824"),
    ErrorCase("not_a_tensor", (1.0, 2), match="x must be a tensor, got float"),
)

SPEC = OpSpec(
    name="max_pool2d",
    params=(
        Param("x", "tensor"),
        Param("kernel_size", "static"),
        Param("stride", "static", None),
        Param("padding", "static", 0),
        Param("dilation", "static", 1),
        Param("ceil_mode", "static", False),
        Param("return_indices", "static", False),
    ),
    reference=reference,
    check=check,
    holds="larger",
    cost=cost,
    outputs=_described,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda *args: 1,
    exact=True,
    ways=ways,
    gradient=Gradient(
        "max_pool2d_backward",
        _backward,
        forward="max_pool2d_with_offsets",
        covers=lambda *args: not args[-1],  # a call with indices differentiates by itself
    ),
    autocast=SAME,
)
