"""depthwise_conv2d on CUDA: one thread for each output."""

# mypy: ignore-errors

import numpy as np
import torch

from nxcore.plugin import window_of
from nxcore_numba.gpu.image import at, extent, place, planes
from nxcore_numba.gpu.launch import BLOCKS, THREADS, Launch, blocks_for, cuda
from nxcore_numba.gpu.reduce import FLUSH, PART, by_thread


@cuda.jit
def convolve(out, x, weight, walk, image, kernel, stride, padding, dilation, xs, weights, outs):
    """Write the sum over the taps on the image; pairs are (vertical, horizontal)."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, p, q = place(i, walk)
        top, left = p * stride[0] - padding[0], q * stride[1] - padding[1]
        total = np.float32(0)
        for a in range(kernel[0]):
            row = top + a * dilation[0]
            if 0 <= row < image[0]:
                for b in range(kernel[1]):
                    column = left + b * dilation[1]
                    if 0 <= column < image[1]:
                        value = np.float32(x[at(n, c, row, column, xs)])
                        total += np.float32(weight[at(c, 0, a, b, weights)]) * value
        out[at(n, c, p, q, outs)] = total
        i += step


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, out = problem["x"], problem.outputs
    window = window_of(*problem.args)
    launch, device = Launch(convolve, blocks_for(out.numel())), x.device
    rest = (
        extent(out), window.image, window.kernel, window.stride, window.padding, window.dilation,
        planes(x), planes(problem["weight"]), planes(out),
    )  # fmt: skip

    def call(x, weight, *where):
        result = out.empty()
        launch(device, result, x, weight, *rest)
        return result

    return call


@cuda.jit
def to_image(out, grad, weight, walk, outputs, kernel, stride, padding, dilation, grads, weights, outs):
    """Write the image's gradient; pairs are (vertical, horizontal)."""
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
                        value = np.float32(grad[at(n, c, row // stride[0], column // stride[1], grads)])
                        total += np.float32(weight[at(c, 0, a, b, weights)]) * value
        out[at(n, c, y, x, outs)] = total
        i += step


@cuda.jit
def to_filters(sums, grad, x, walk, terms, groups, image, kernel, stride, padding, dilation, grads, xs):
    """Write each thread's sums of one channel, tap by tap; ``walk`` is that of the outputs."""
    c, group = cuda.blockIdx.x % walk[1], cuda.blockIdx.x // walk[1]
    first, end = group * terms // groups + cuda.threadIdx.x, (group + 1) * terms // groups
    taps = kernel[0] * kernel[1]
    place_of_first = ((np.int64(group) * cuda.blockDim.x + cuda.threadIdx.x) * walk[1] + c) * taps
    for tap in range(taps):
        a, b = tap // kernel[1], tap % kernel[1]
        total, part, steps = np.float64(0), np.float32(0), 0
        i = first
        while i < end:
            q, rest = i % walk[3], i // walk[3]
            p, n = rest % walk[2], rest // walk[2]
            row = p * stride[0] - padding[0] + a * dilation[0]
            column = q * stride[1] - padding[1] + b * dilation[1]
            if 0 <= row < image[0] and 0 <= column < image[1]:
                part += np.float32(grad[at(n, c, p, q, grads)]) * np.float32(x[at(n, c, row, column, xs)])
            steps += 1
            if steps % FLUSH == 0:
                total += np.float64(part)
                part = np.float32(0)
            i += cuda.blockDim.x
        sums[place_of_first + tap] = np.float32(total + np.float64(part))


def bind_image(out, grad, weight, window):
    """Return ``launch(grad, weight)``, which makes the image's gradient."""
    launch = Launch(to_image, blocks_for(out.numel()))
    pairs = (window.kernel, window.stride, window.padding, window.dilation)
    rest = (extent(out), window.outputs, *pairs, planes(grad), planes(weight), planes(out))

    def run(grad, weight):
        result = out.empty()
        launch(grad.device, result, grad, weight, *rest)
        return result

    return run


def bind_filters(out, grad, x, window):
    """Return ``launch(grad, x)``, which makes the filters' gradient."""
    channels, outputs = out.shape[0], out.numel()
    terms = grad.numel() // channels
    groups = max(1, min(BLOCKS // channels, terms // PART))
    parts = groups * THREADS
    first, second = Launch(to_filters, channels * groups), Launch(by_thread, -(-outputs // THREADS))
    pairs = (window.kernel, window.stride, window.padding, window.dilation)
    rest = (extent(grad), terms, groups, window.image, *pairs, planes(grad), planes(x))
    # The sums are a tensor (parts, channels, taps): the parts fall away.
    (high, wide), (c, _, a, b) = window.kernel, out.strides
    kept = ((channels, high * wide, c), (high, wide, a), (wide, 1, b))
    gone = ((1, 0), (1, 0), (parts, outputs))

    def run(grad, x):
        result, device = out.empty(), x.device
        sums = torch.empty(parts * outputs, dtype=torch.float32, device=device)
        first(device, sums, grad, x, *rest)
        second(device, result, sums, kept, gone, outputs, parts, 1, True, 1.0)
        return result

    return run


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    grad, x, weight = problem["grad"], problem["x"], problem["weight"]
    x_out, weight_out = problem.outputs
    window = window_of(x, weight, *problem.args[3:6])
    image = bind_image(x_out, grad, weight, window) if x_out else None
    filters = bind_filters(weight_out, grad, x, window) if weight_out else None

    def call(grad, x, weight, *where):
        return image and image(grad, weight), filters and filters(grad, x)

    return call
