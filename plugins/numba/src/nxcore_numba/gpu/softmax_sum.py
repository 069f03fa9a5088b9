"""softmax_sum on CUDA: eight candidates for each launch; each thread computes the weights."""

# mypy: ignore-errors

import math

import numpy as np
import torch

from nxcore_numba.dims import candidates_of, factors_of, is_one_number
from nxcore_numba.gpu.launch import THREADS, Launch, blocks_for, cuda

EIGHT = 8


@cuda.jit
def blend(out, logits, stride, softmax, total, first, count, more, size, acc, a, b, c, d, e, f, g, h):
    """Write candidates ``first`` to ``first + count - 1``, added to ``acc`` if ``more``."""
    weights = cuda.local.array(8, np.float32)
    for k in range(count):
        weights[k] = np.float32(logits[(first + k) * stride])
    if softmax:
        top = np.float32(-math.inf)
        for k in range(total):
            top = max(top, np.float32(logits[k * stride]))
        scale = np.float32(0)
        for k in range(total):
            scale += np.float32(math.exp(np.float32(logits[k * stride]) - top))
        for k in range(count):
            weights[k] = np.float32(math.exp(weights[k] - top)) / scale
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < size:
        part = weights[0] * np.float32(a[i])
        if more:
            part += acc[i]
        if count > 1:
            part += weights[1] * np.float32(b[i])
        if count > 2:
            part += weights[2] * np.float32(c[i])
        if count > 3:
            part += weights[3] * np.float32(d[i])
        if count > 4:
            part += weights[4] * np.float32(e[i])
        if count > 5:
            part += weights[5] * np.float32(f[i])
        if count > 6:
            part += weights[6] * np.float32(g[i])
        if count > 7:
            part += weights[7] * np.float32(h[i])
        out[i] = part
        i += step


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, device = problem.outputs, problem.device
    metas, _ = candidates_of(problem["xs"])
    (factors, softmax), total, size = factors_of(problem), len(metas), out.numel()
    stride = factors.strides[0]
    launch = Launch(blend, blocks_for(size))

    def call(xs, logits):
        result = out.empty()
        acc = torch.empty(size if total > EIGHT else 1, dtype=torch.float32, device=device)
        for first in range(0, total, EIGHT):
            group = list(xs[first : first + EIGHT])
            count = len(group)
            target = result if first + EIGHT >= total else acc
            group += group[:1] * (EIGHT - count)
            launch(device, target, logits, stride, softmax, total, first, count, first > 0, size, acc, *group)
        return result

    return call


@cuda.jit
def candidate(grad, pace, x, out, logits, stride, softmax, total, index, dots, wanted, written, size):
    """Write one candidate's gradient if ``written``, its dot product with ``grad`` if ``wanted``.

    ``pace`` is 0 where ``grad`` is one number, as the gradient of a sum is.
    """
    weight = np.float32(logits[index * stride])
    if softmax:
        top = np.float32(-math.inf)
        for k in range(total):
            top = max(top, np.float32(logits[k * stride]))
        scale = np.float32(0)
        for k in range(total):
            scale += np.float32(math.exp(np.float32(logits[k * stride]) - top))
        weight = np.float32(math.exp(weight - top)) / scale
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    dot = np.float64(0)
    while i < size:
        g = np.float32(grad[i * pace])
        if wanted:
            dot += np.float64(g * np.float32(x[i]))
        if written:
            out[i] = weight * g
        i += step
    if wanted:
        parts = cuda.shared.array(THREADS, np.float64)
        lane = cuda.threadIdx.x
        parts[lane] = dot
        half = THREADS // 2
        while half > 0:
            cuda.syncthreads()
            if lane < half:
                parts[lane] += parts[lane + half]
            half //= 2
        if lane == 0:
            dots[np.int64(index) * cuda.gridDim.x + cuda.blockIdx.x] = parts[0]


@cuda.jit
def finish(out, logits, stride, softmax, total, dots, blocks):
    """Apply the Jacobian of softmax, unless the weights were given, in one block."""
    sums = cuda.shared.array(THREADS, np.float64)
    weights = cuda.shared.array(THREADS, np.float64)
    lane = cuda.threadIdx.x
    if lane < total:
        part = np.float64(0)
        for b in range(blocks):
            part += dots[lane * blocks + b]
        sums[lane] = part
        top = np.float64(-math.inf)
        for k in range(total):
            top = max(top, np.float64(np.float32(logits[k * stride])))
        scale = np.float64(0)
        for k in range(total):
            scale += math.exp(np.float64(np.float32(logits[k * stride])) - top)
        weights[lane] = math.exp(np.float64(np.float32(logits[lane * stride])) - top) / scale
    cuda.syncthreads()
    if lane < total:
        mean = np.float64(0)
        for k in range(total):
            mean += weights[k] * sums[k]
        out[lane] = np.float32(weights[lane] * (sums[lane] - mean) if softmax else sums[lane])


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    xs, (factors, softmax), device = problem["xs"], factors_of(problem), problem.device
    stride = factors.strides[0]
    total, size = len(candidates_of(xs)[0]), problem["grad"].numel()
    xs_out, logits_out = problem.outputs
    stacked = not isinstance(xs, tuple)
    blocks = blocks_for(size)
    pace = np.int64(0 if is_one_number(problem["grad"]) else 1)
    each, last = Launch(candidate, blocks), Launch(finish, 1)

    def call(grad, xs, logits, output_mask):
        if stacked:
            result = xs_out.empty() if xs_out else None
            outs = result.unbind(0) if xs_out else (None,) * total
        else:
            outs = result = tuple([m.empty() if m else None for m in xs_out])
        wanted = logits_out is not None
        dots = torch.empty(total * blocks if wanted else 1, dtype=torch.float64, device=device)
        for i, (x, out) in enumerate(zip(xs, outs, strict=True)):
            if wanted or out is not None:
                written = out is not None
                target = out if written else x  # never written then
                each(
                    device,
                    grad,
                    pace,
                    x,
                    target,
                    logits,
                    stride,
                    softmax,
                    total,
                    i,
                    dots,
                    wanted,
                    written,
                    size,
                )
        if not wanted:
            return result, None
        logits_grad = logits_out.empty()
        last(device, logits_grad, logits, stride, softmax, total, dots, blocks)
        return result, logits_grad

    return call
