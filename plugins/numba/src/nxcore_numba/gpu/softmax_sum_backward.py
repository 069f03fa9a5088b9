"""softmax_sum_backward on CUDA: a launch a candidate, then one that puts the logits' gradient together.

Every block writes its part of a dot product and one block adds the parts up in order, without atomics, so
that the same call gives the same bits.
"""

import math

import numpy as np
import torch

from nxcore_numba.dims import candidates_of, factors_of, is_one_number
from nxcore_numba.gpu.launch import THREADS, Launch, blocks_for, cuda


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


def plan(problem):
    """Return a callable for calls like ``problem``."""
    xs, (factors, softmax), device = problem["xs"], factors_of(problem), problem.device
    stride = factors.strides[0]
    total, size = len(candidates_of(xs)[0]), problem["grad"].numel()
    xs_out, logits_out = problem.outputs
    stacked = not isinstance(xs, tuple)
    blocks = blocks_for(size)
    pace = np.int64(0 if is_one_number(problem["grad"]) else 1)
    each, last = Launch(candidate, blocks), Launch(finish, 1)

    def call(grad, xs, logits, output_mask):  # noqa: ARG001  the mask is part of the plan
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
