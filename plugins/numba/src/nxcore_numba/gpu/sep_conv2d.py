"""sep_conv2d on CUDA: a launch each for ReLU, the depthwise convolution and the 1x1 convolution."""

from collections.abc import Callable
from typing import Any

import torch

from nxcore.plugin import Problem, TensorMeta, window_of
from nxcore_numba.gpu import separable
from nxcore_numba.gpu.depthwise_conv2d import bind_filters, bind_image
from nxcore_numba.gpu.image import extent, planes
from nxcore_numba.gpu.launch import SIMULATED, THREADS, Launch, blocks_for
from nxcore_numba.gpu.reduce import by_thread


def plan(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    x, filters, points, *where, relu = problem.args
    out = problem.outputs
    keep, image = separable.bind_positive(x) if relu else (lambda x: x, x)
    convolve, u = separable.bind_between(image, filters, window_of(x, filters, *where))
    mix = separable.bind_mix(out, u, points.strides[:2])

    def call(x: Any, filters: Any, points: Any, *rest: Any) -> Any:
        result = out.empty()
        mix(result, convolve(keep(x), filters), points)
        return result

    return call


PARTS = 4 if SIMULATED else 64
"""Parts of the 1x1 weights' gradient, at most."""


def plan_backward(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    grad, x, filters, points, *where, relu, _ = problem.args
    x_out, filters_out, points_out = problem.outputs
    window = window_of(x, filters, *where)
    keep, image = separable.bind_positive(x) if relu else (lambda x: x, x)
    inner = separable.dense(x, x.shape[-3], window.outputs)
    unmix = separable.bind_mix(inner, grad, points.strides[1::-1])
    to_image = bind_image(x_out, inner, filters, window) if x_out else None
    to_filters = bind_filters(filters_out, inner, image, window) if filters_out else None
    convolve, u = separable.bind_between(image, filters, window)
    to_points = bind_points(points_out, grad, u) if points_out else None
    if x_out:
        mask, masked = (
            Launch(separable.mask, blocks_for(x.numel())),
            (extent(x_out), planes(x), planes(x_out)),
        )

    def call(grad: Any, x: Any, filters: Any, points: Any, *rest: Any) -> Any:
        x_grad = filters_grad = points_grad = None
        kept = keep(x) if to_filters or to_points else None
        if to_image or to_filters:
            between = inner.empty()
            unmix(between, grad, points)
        if to_image:
            x_grad = to_image(between, filters)
            if relu:
                mask(x.device, x_grad, x, *masked)
        if to_filters:
            filters_grad = to_filters(between, kept)
        if to_points:
            points_grad = to_points(grad, convolve(kept, filters))
        return x_grad, filters_grad, points_grad

    return call


def bind_points(out: TensorMeta, grad: TensorMeta, u: TensorMeta) -> Callable[..., Any]:
    """Return ``launch(grad, u)``, which makes the 1x1 weights' gradient."""
    made, channels = out.shape[:2]
    outputs, terms = out.numel(), grad.numel() // made
    parts = max(1, min(PARTS, terms // 64))
    first = Launch(separable.to_points, blocks_for(outputs * parts))
    second = Launch(by_thread, -(-outputs // THREADS))
    rest = (extent(grad), made, channels, parts, planes(grad), planes(u))
    kept = ((1, 0, 0), (made, channels, out.strides[0]), (channels, 1, out.strides[1]))
    gone = ((1, 0), (1, 0), (parts, outputs))

    def run(grad: Any, u: Any) -> Any:
        result, device = out.empty(), grad.device
        sums = torch.empty(parts * outputs, dtype=torch.float32, device=device)
        first(device, sums, grad, u, *rest)
        second(device, result, sums, kept, gone, outputs, parts, 1, True, 1.0)
        return result

    return run
