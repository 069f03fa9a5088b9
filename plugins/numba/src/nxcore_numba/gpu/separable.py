"""Separable convolutions on CUDA: the tensor in between is in memory, in float32; a thread an element."""

# mypy: ignore-errors

import numpy as np
import torch

from nxcore.plugin import TensorMeta
from nxcore_numba.gpu.depthwise_conv2d import convolve
from nxcore_numba.gpu.image import at, extent, place, planes
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda
from nxcore_numba.gpu.reduce import FLUSH


@cuda.jit
def positive(out, x, walk, xs, outs):
    """Write what is positive; NaN stays."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, p, q = place(i, walk)
        value = np.float32(x[at(n, c, p, q, xs)])
        out[at(n, c, p, q, outs)] = np.float32(0) if value < 0 else value
        i += step


@cuda.jit
def mix(out, x, points, walk, channels, xs, steps, outs):
    """Write the sum over ``channels`` of x times their weight; ``steps`` are those of the output and of x."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, p, q = place(i, walk)
        total = np.float32(0)
        for k in range(channels):
            weight = np.float32(points[c * steps[0] + k * steps[1]])
            total += weight * np.float32(x[at(n, k, p, q, xs)])
        out[at(n, c, p, q, outs)] = total
        i += step


@cuda.jit
def mask(out, x, walk, xs, outs):
    """Put zeros where nothing positive came."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, p, q = place(i, walk)
        if np.float32(x[at(n, c, p, q, xs)]) <= 0:
            out[at(n, c, p, q, outs)] = 0
        i += step


@cuda.jit
def to_points(sums, grad, u, walk, made, channels, parts, grads, us):
    """Write each thread's sum over a part of the outputs' places; ``walk`` is that of the outputs."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    terms = walk[0] // made
    while i < made * channels * parts:
        c, rest = i % channels, i // channels
        o, part_of = rest % made, rest // made
        total, part = np.float64(0), np.float32(0)
        for k in range(part_of * terms // parts, (part_of + 1) * terms // parts):
            q, more = k % walk[3], k // walk[3]
            p, n = more % walk[2], more // walk[2]
            part += np.float32(grad[at(n, o, p, q, grads)]) * np.float32(u[at(n, c, p, q, us)])
            if k % FLUSH == 0:
                total += np.float64(part)
                part = np.float32(0)
        sums[i] = np.float32(total + np.float64(part))
        i += step


def dense(x, channels, size):
    """Describe float32 images of x's number."""
    images = x.shape[0] if x.ndim == 4 else 1
    pixels = size[0] * size[1]
    strides = (channels * pixels, pixels, size[1], 1)
    return TensorMeta((images, channels, *size), strides, torch.float32, x.device)


def bind_positive(x):
    """Return ``launch(x)``, which makes what is positive, and its description."""
    kept = dense(x, x.shape[-3], x.shape[-2:])
    launch, rest = Launch(positive, blocks_for(x.numel())), (extent(kept), planes(x), planes(kept))

    def run(x):
        result = kept.empty()
        launch(x.device, result, x, *rest)
        return result

    return run, kept


def bind_between(x, filters, window):
    """Return ``launch(x, filters)``, which makes what is between the convolutions, and its description."""
    u = dense(x, x.shape[-3], window.outputs)
    launch = Launch(convolve, blocks_for(u.numel()))
    rest = (
        extent(u), window.image, window.kernel, window.stride, window.padding, window.dilation,
        planes(x), planes(filters), planes(u),
    )  # fmt: skip

    def run(x, filters):
        result = u.empty()
        launch(x.device, result, x, filters, *rest)
        return result

    return run, u


def bind_mix(out, x, steps):
    """Return ``launch(out, x, points)``; ``steps`` are the points' strides along the channels of each."""
    launch = Launch(mix, blocks_for(out.numel()))
    rest = (extent(out), x.shape[-3], planes(x), tuple(steps), planes(out))
    return lambda out, x, points: launch(x.device, out, x, points, *rest)
