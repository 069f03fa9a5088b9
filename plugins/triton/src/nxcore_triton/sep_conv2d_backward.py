"""sep_conv2d_backward: the gradient between the convolutions goes to memory, in float32, and then on.

A launch makes it, a second one the image's gradient from it and what is positive in the image, in float32.
With these the filters' gradient is depthwise_conv2d_backward's; that of the 1x1 weights has parts, which are
added up in fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem, Reduction, TensorMeta, window_of
from nxcore_triton import separable
from nxcore_triton import tile as tiles
from nxcore_triton.depthwise_conv2d_backward import bind_filters
from nxcore_triton.launch import Launch
from nxcore_triton.strips import Image
from nxcore_triton.sum import plan_reduction
from nxcore_triton.tile import cdiv


def _dense(shape: tuple[int, ...], device: torch.device) -> TensorMeta:
    """Describe float32 in row-major order."""
    return TensorMeta(shape, torch.empty(shape, device="meta").stride(), torch.float32, device)


def plan(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem.

    It is called as ``call(grad, x, dw_weight, pw_weight, stride, padding, dilation, relu, output_mask)``.
    """
    x_fresh, dw_fresh, pw_fresh = problem.outputs
    inner: Any = None  # each is made where an output needs it
    positive: Any = None
    between: Any = None
    to_image: Any = None
    to_filters: Any = None
    to_points: Any = None
    _, x, dw_weight, _, *where, _, _ = problem.args
    window = window_of(x, dw_weight, *where)
    if x_fresh is not None or dw_fresh is not None:
        images, channels = Image.of(x).shape[:2]
        inner = _dense((images, channels, *window.outputs), problem.device)
        positive = None if dw_fresh is None else _dense(Image.of(x).shape, problem.device)
        between, to_image = _bind_image(problem, window, inner)
    if dw_fresh is not None:
        to_filters = bind_filters(inner, positive, dw_fresh, window, None)
    if pw_fresh is not None:
        to_points = _bind_points(problem, window)

    def call(
        grad: Tensor, x: Tensor, dw_weight: Tensor, pw_weight: Tensor, *_: Any
    ) -> tuple[Tensor | None, ...]:
        results = tuple(None if fresh is None else fresh.empty() for fresh in problem.outputs)
        if inner is not None:
            found, kept = inner.empty(), None if positive is None else positive.empty()
            between(grad, pw_weight, found)
            to_image(found, x, dw_weight, results[0], kept)
            if to_filters is not None:
                to_filters(found, kept, results[1])
        if to_points is not None:
            to_points(grad, x, dw_weight, results[2])
        return results

    return call


def _bind_image(problem: Problem, window: Any, inner: TensorMeta) -> tuple[Callable[..., None], ...]:
    """Return ``between(grad, points, inner)`` and ``to_image(inner, x, filters, x_grad, positive)``."""
    grad, x, dw_weight, pw_weight = problem.args[:4]
    x_fresh, dw_fresh, _ = problem.outputs
    image, out, middle = Image.of(x), Image.of(grad), Image.of(inner)
    channels, made = image.shape[1], out.shape[1]
    pixels, places = (n[0] * n[1] for n in (window.outputs, window.image))
    tile = separable.sides(channels, made, pixels)
    shape = {"CHANNELS": tile[0], "PIXELS": tile[2]}
    groups, counts = cdiv(channels, tile[0]), (channels, made)
    first = Launch(
        separable.unmix,
        (image.shape[0], cdiv(pixels, tile[2]), groups),
        problem.device,
        MADE=min(tile[1], 32),
        **shape,
    )
    second = Launch(
        separable.to_image,
        (image.shape[0], cdiv(places, tile[2]), groups),
        problem.device,
        RELU=problem["relu"],
        IMAGE=x_fresh is not None,
        POSITIVE=dw_fresh is not None,
        **shape,
    )
    of_first = (counts, window.outputs, out.strides, pw_weight.strides[:2], middle.strides)
    of_second = (
        counts,
        window.image,
        window.outputs,
        middle.strides,
        image.strides,
        separable.filter_steps(dw_weight),
        Image.of(x_fresh or x).strides,
        separable.of_window(window),
    )

    def between(*tensors: Tensor) -> None:
        first(tensors, *tensors, *of_first)

    def to_image(
        found: Tensor, x: Tensor, filters: Tensor, x_grad: Tensor | None, kept: Tensor | None
    ) -> None:
        # A tensor that isn't written stands in for none.
        tensors = (found, x, filters, found if x_grad is None else x_grad, found if kept is None else kept)
        second(tensors, *tensors, *of_second)

    return between, to_image


def _bind_points(problem: Problem, window: Any) -> Callable[..., None]:
    """Return ``launch(grad, x, filters, points_grad)``."""
    grad, x, dw_weight = problem.args[:3]
    fresh, image, out = problem.outputs[2], Image.of(x), Image.of(grad)
    channels, made, pixels = image.shape[1], out.shape[1], window.outputs[0] * window.outputs[1]
    tile = separable.sides(channels, made, pixels)
    across, groups = cdiv(pixels, tile[2]), (cdiv(channels, tile[0]), cdiv(made, tile[1]))
    blocks = image.shape[0] * across
    most = 4 if tiles.INTERPRETED else cdiv(2 * tiles.FILL, groups[0] * groups[1])
    span = cdiv(blocks, min(blocks, most))
    parts = _dense((cdiv(blocks, span), made, channels), problem.device)
    launch = Launch(
        separable.to_points,
        (parts.shape[0], *groups),
        problem.device,
        RELU=problem["relu"],
        CHANNELS=tile[0],
        MADE=tile[1],
        PIXELS=tile[2],
    )
    conclude = plan_reduction(Reduction.of(parts, (0,), (0, *fresh.strides[:2])), problem.device)
    fixed = (
        (channels, made),
        (blocks, across),
        span,
        window.image,
        window.outputs,
        out.strides,
        image.strides,
        separable.filter_steps(dw_weight),
        separable.of_window(window),
    )

    def run(grad: Tensor, x: Tensor, filters: Tensor, points_grad: Tensor) -> None:
        found = parts.empty()
        tensors = (grad, x, filters, found)
        launch(tensors, *tensors, *fixed)
        conclude(found, points_grad, 1.0)

    return run
