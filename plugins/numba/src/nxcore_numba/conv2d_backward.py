"""conv2d_backward on the CPU: the image's gradient by conv2d's tiles, the others by products of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem, turned_windows, window_of
from nxcore_numba import conv2d, conv2d_filters, stencil
from nxcore_numba.half import KINDS


def to_image(problem: Problem) -> Iterator[Callable[[int, int, int], None]]:
    """Yield kernels that make the image's gradient, ``kernel(x_grad, grad, weight)`` of addresses."""
    grad, x, weight, *where, groups, _ = problem.args
    (shape, grad_steps), (_, steps) = stencil.planes(grad), stencil.planes(problem.outputs[0])
    window, size = window_of(x, weight, *where), grad.dtype.itemsize
    (image, channel, row, column), made = weight.strides, weight.shape[0] // groups
    for part in turned_windows(window):
        apart = (*steps[:2], window.stride[0] * steps[2], window.stride[1] * steps[3])
        of_filters = (channel, image, -part.step[0] * row, -part.step[1] * column)
        layer = conv2d.Layer(
            part.window, groups, made, weight.shape[1], shape[0], grad_steps, apart, of_filters, made * image
        )
        kernel = conv2d.bind(layer, KINDS[grad.dtype], size)
        first_filter = size * (part.tap[0] * row + part.tap[1] * column)
        first_pixel = size * (part.first[0] * steps[2] + part.first[1] * steps[3])
        yield _shifted(kernel, first_pixel, first_filter)


def _shifted(kernel: Any, first_pixel: int, first_filter: int) -> Callable[[int, int, int], None]:
    return lambda x_grad, grad, weight: kernel(x_grad + first_pixel, grad, weight + first_filter, 0)


def plan(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return a callable for calls like ``problem``."""
    grad, x, weight, *where, groups, _ = problem.args
    outputs = problem.outputs
    images = list(to_image(problem)) if outputs[0] else []
    filters = None
    if outputs[1] or outputs[2]:
        window = window_of(x, weight, *where)
        filters = conv2d_filters.compiled(window, groups, grad, x, weight, outputs[1:])

    def call(grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        made = tuple(None if out is None else out.empty() for out in outputs)
        x_grad, weight_grad, bias_grad = (0 if t is None else t.data_ptr() for t in made)
        for image in images:
            image(x_grad, grad.data_ptr(), weight.data_ptr())
        if filters is not None:
            filters(weight_grad, bias_grad, grad.data_ptr(), x.data_ptr())
        return made

    return call
