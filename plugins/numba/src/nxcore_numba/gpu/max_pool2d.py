"""max_pool2d on CUDA: one thread for each output; the number of the largest tap is written if requested."""

# mypy: ignore-errors

import math

import numpy as np

from nxcore.plugin import Window
from nxcore_numba.gpu.image import at, extent, place, planes
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda

NOTHING, OFFSETS, INDICES = range(3)
"""The second output, besides the maxima."""


@cuda.jit(device=True)
def first(start, step):
    """Return the first tap that doesn't lie before the image."""
    return 0 if start >= 0 else (step - 1 - start) // step


@cuda.jit
def pool(out, numbers, x, walk, image, kernel, stride, padding, dilation, xs, outs, nums, asked):
    """Write the largest of each window; pairs are (vertical, horizontal)."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, p, q = place(i, walk)
        top, left = p * stride[0] - padding[0], q * stride[1] - padding[1]
        best, tap, seen = np.float32(-math.inf), 0, False
        for a in range(kernel[0]):
            row = top + a * dilation[0]
            if 0 <= row < image[0]:
                for b in range(kernel[1]):
                    column = left + b * dilation[1]
                    if 0 <= column < image[1]:
                        value = np.float32(x[at(n, c, row, column, xs)])
                        if value > best or value != value or not seen:
                            best, tap, seen = value, a * kernel[1] + b, True
        out[at(n, c, p, q, outs)] = best
        if asked == OFFSETS:
            numbers[at(n, c, p, q, nums)] = tap
        elif asked == INDICES:
            if not seen:  # torch's index, off the plane
                tap = first(top, dilation[0]) * kernel[1] + first(left, dilation[1])
            row = top + tap // kernel[1] * dilation[0]
            numbers[at(n, c, p, q, nums)] = row * image[1] + left + tap % kernel[1] * dilation[1]
        i += step


def compiled(problem, out, numbers, asked):
    """Return the kernel, taking ``(out, numbers, x)`` as tensors."""
    x = problem["x"]
    window = Window.of_pool(x.shape, *problem.args[1:6])
    launch, device = Launch(pool, blocks_for(out.numel())), x.device
    rest = (
        extent(out), window.image, window.kernel, window.stride, window.padding, window.dilation,
        planes(x), planes(out), planes(numbers), asked,
    )  # fmt: skip
    return lambda out, numbers, x: launch(device, out, numbers, x, *rest)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    if isinstance(problem.outputs, tuple):
        return plan_numbered(problem, INDICES)
    out = problem.outputs
    kernel = compiled(problem, out, out, NOTHING)

    def call(x, *window):
        result = out.empty()
        kernel(result, result, x)
        return result

    return call


def plan_numbered(problem, asked):
    """Return a callable for calls that return offsets or indices too."""
    out, numbers = problem.outputs
    kernel = compiled(problem, out, numbers, asked)

    def call(x, *window):
        result, taps = out.empty(), numbers.empty()
        kernel(result, taps, x)
        return result, taps

    return call


def plan_with_offsets(problem):
    """Return a callable for calls like ``problem``."""
    return plan_numbered(problem, OFFSETS)


@cuda.jit
def spread(out, grad, offsets, walk, outputs, kernel, stride, padding, dilation, grads, taps, outs):
    """Add the gradients of the windows that name this input's tap; pairs are (vertical, horizontal)."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, y, x = place(i, walk)
        total = np.float32(0)
        for a in range(kernel[0]):
            row = y + padding[0] - a * dilation[0]
            if row >= 0 and row % stride[0] == 0 and row // stride[0] < outputs[0]:
                for b in range(kernel[1]):
                    column = x + padding[1] - b * dilation[1]
                    if column >= 0 and column % stride[1] == 0 and column // stride[1] < outputs[1]:
                        p, q = row // stride[0], column // stride[1]
                        if offsets[at(n, c, p, q, taps)] == a * kernel[1] + b:
                            total += np.float32(grad[at(n, c, p, q, grads)])
        out[at(n, c, y, x, outs)] = total
        i += step


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    window = Window.of_pool(out.shape, *problem.args[3:8])
    launch, device = Launch(spread, blocks_for(out.numel())), out.device
    rest = (
        extent(out), window.outputs, window.kernel, window.stride, window.padding, window.dilation,
        planes(grad), planes(offsets), planes(out),
    )  # fmt: skip

    def call(grad, offsets, *window):
        result = out.empty()
        launch(device, result, grad, offsets, *rest)
        return result

    return call
