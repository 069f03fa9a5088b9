"""Depthwise convolution of any filter, stride, padding, dilation and layout, and its gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, TensorMeta, Window
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.depthwise import FILL, STEPS, TARGET, Image, ceil_div, filter_steps, target
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, ticket

THREADS = 256
SHAPE = "10i"  # struct Shape
TERMS = 8  # of a tap, for each thread, that make a block of its own worth while


def _shape(on: Image, seen: Window) -> tuple[int, ...]:
    pairs = (seen.kernel, seen.stride, seen.padding, seen.dilation)
    return (on.height, on.width, *(n for pair in pairs for n in pair))


def instance(dtype: torch.dtype, source: str, *, image: bool) -> Instance:
    """Return the kernel that makes an output a thread: of a forward pass, or the image's gradient."""
    return Instance("depthwise_any", (TYPES[dtype], image), source=source, blocks=4)


def filter_instance(dtype: torch.dtype) -> Instance:
    """Return the kernel that makes the filter's gradient."""
    return Instance("depthwise_any_filter", (TYPES[dtype],), source="depthwise_conv2d_backward")


def plan_outputs(
    source: str, given: TensorMeta, weight: TensorMeta, out: TensorMeta, seen: Window, *, image: bool
) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Return ``call(given, weight, out)``: the output from x, or x's gradient from the output's."""
    from_image, out_image = Image.of(given), Image.of(out)
    total = out.numel()
    return Launch(
        instance(out.dtype, source, image=image),
        out.device,
        ceil_div(total, THREADS),
        THREADS,
        pointers=3,
        layout=f"q{STEPS}{STEPS}3q{SHAPE}4i",
        values=(
            *(total, *from_image.steps, *out_image.steps, *filter_steps(weight)),
            *_shape(from_image, seen),
            *(out_image.channels, out_image.height, out_image.width, int(out_image.channels_inside)),
        ),
    )


def plan_filter(
    x: TensorMeta, grad: TensorMeta, weight_grad: TensorMeta, seen: Window
) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Return ``call(x, grad, weight_grad)``."""
    x_image, grad_image = Image.of(x), Image.of(grad)
    channels, taps = grad_image.channels, seen.taps
    terms = grad.numel() // channels
    splits = max(min(ceil_div(8 * FILL, channels), terms // (TERMS * THREADS)), 1)
    launch = Launch(
        filter_instance(x.dtype),
        x.device,
        channels * splits,
        THREADS,
        pointers=5,
        layout=f"{STEPS}{STEPS}{TARGET}q{SHAPE}3iI",
        values=(
            *(*x_image.steps, *grad_image.steps, *target(weight_grad), terms, *_shape(x_image, seen)),
            *(channels, grad_image.height, grad_image.width, splits),
        ),
    )
    size, device = channels * splits * taps, x.device

    def call(x: Tensor, grad: Tensor, weight_grad: Tensor) -> None:
        partials = torch.empty(size, dtype=torch.float32, device=device)
        launch(x, grad, weight_grad, partials, ticket(device, channels))

    return call


def instances(source: str) -> list[Instance]:
    """Return all kernels of a source."""
    found = [instance(dtype, source, image=source != "depthwise_conv2d") for dtype in FLOATS]
    return found if source == "depthwise_conv2d" else [*found, *map(filter_instance, FLOATS)]
