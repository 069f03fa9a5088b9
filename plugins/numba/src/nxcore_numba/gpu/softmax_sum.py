"""softmax_sum on CUDA: eight candidates a launch, each thread computing the weights itself."""

import math

import numpy as np
import torch

from nxcore_numba.dims import candidates_of, factors_of
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda

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
