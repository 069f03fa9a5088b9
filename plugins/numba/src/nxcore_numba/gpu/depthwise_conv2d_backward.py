"""depthwise_conv2d_backward on CUDA: a thread an input, and blocks a channel of the filters.

Each thread writes its sums and a second launch adds them up in order: the same call gives the same bits.
"""

import numpy as np
import torch

from nxcore.ops.depthwise_conv2d import window as window_of
from nxcore_numba.gpu.image import at, extent, place, planes
from nxcore_numba.gpu.launch import BLOCKS, THREADS, Launch, blocks_for, cuda
from nxcore_numba.gpu.reduce import FLUSH, PART, by_thread


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


def plan(problem):
    """Return a callable for calls like ``problem``."""
    grad, x, weight = problem["grad"], problem["x"], problem["weight"]
    x_out, weight_out = problem.outputs
    window, device = window_of(x, weight, *problem.args[3:6]), x.device
    pairs = (window.kernel, window.stride, window.padding, window.dilation)
    if x_out:
        first = Launch(to_image, blocks_for(x.numel()))
        rest = (extent(x_out), window.outputs, *pairs, planes(grad), planes(weight), planes(x_out))
    if weight_out:
        channels, outputs = weight.shape[0], weight.numel()
        terms = grad.numel() // channels
        groups = max(1, min(BLOCKS // channels, terms // PART))
        parts = groups * THREADS
        second, third = Launch(to_filters, channels * groups), Launch(by_thread, -(-outputs // THREADS))
        others = (extent(grad), terms, groups, window.image, *pairs, planes(grad), planes(x))
        # The sums are a tensor (parts, channels, taps): the parts fall away.
        (high, wide), (c, _, a, b) = window.kernel, weight_out.strides
        kept = ((channels, high * wide, c), (high, wide, a), (wide, 1, b))
        gone = ((1, 0), (1, 0), (parts, outputs))

    def call(grad, x, weight, *where):  # noqa: ARG001  the rest is part of the plan
        x_grad = weight_grad = None
        if x_out:
            x_grad = x_out.empty()
            first(device, x_grad, grad, weight, *rest)
        if weight_out:
            weight_grad = weight_out.empty()
            sums = torch.empty(parts * outputs, dtype=torch.float32, device=device)
            second(device, sums, grad, x, *others)
            third(device, weight_grad, sums, kept, gone, outputs, parts, 1, True, 1.0)
        return x_grad, weight_grad

    return call
