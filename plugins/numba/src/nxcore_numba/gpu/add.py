"""add on CUDA: a thread computes one element in each step, operands of any floating type the device reads."""

# mypy: ignore-errors

import numpy as np
import torch

from nxcore.plugin import Reduction, broadcast_strides
from nxcore_numba.dims import DIMS, collapse
from nxcore_numba.gpu import reduce
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda


@cuda.jit
def flat(out, x, y, alpha, size):
    """Add memory that all three run through alike."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < size:
        out[i] = np.float32(x[i]) + alpha * np.float32(y[i])
        i += step


@cuda.jit
def strided(out, x, y, alpha, size, a, b, c, d):
    """Add over four dimensions, each (size, strides of out, x and y), ``a`` the outermost."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < size:
        z = i % d[0]
        rest = i // d[0]
        w = rest % c[0]
        rest = rest // c[0]
        v = rest % b[0]
        u = rest // b[0]
        left = np.float32(x[u * a[2] + v * b[2] + w * c[2] + z * d[2]])
        right = np.float32(y[u * a[3] + v * b[3] + w * c[3] + z * d[3]])
        out[u * a[1] + v * b[1] + w * c[1] + z * d[1]] = left + alpha * right
        i += step


def compiled(out, x, y):
    """Return the kernel for these descriptions, taking ``out``, ``x`` and ``y`` as tensors, and ``alpha``."""
    dims = collapse(out.shape, [broadcast_strides(m, out.shape) for m in (out, x, y)])
    size = out.numel()
    if all(d[1:] == (1, 1, 1) for d in dims) and len(dims) < 2:
        launch, extent = Launch(flat, blocks_for(size)), (size,)
    else:
        filled = [(1, 0, 0, 0)] * (DIMS - len(dims)) + dims
        launch, extent = Launch(strided, blocks_for(size)), (size, *filled)
    device = out.device
    return lambda out, x, y, alpha: launch(device, out, x, y, np.float32(alpha), *extent)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    target, result_meta = problem["out"], problem.outputs
    kernel = compiled(target or result_meta, problem["x"], problem["y"])

    def call(x, y, alpha, out):
        result = result_meta.empty() if out is None else out
        kernel(result, x, y, alpha)
        return result

    return call


def _one(grad, meta, reduction):
    """Return ``undo(grad, alpha)`` for one operand."""
    if reduction:
        kernel = reduce.compiled(grad, reduction)

        def undo(grad, alpha):
            result = meta.empty()
            kernel(result, grad, float(alpha))
            return result

        return undo
    zero = torch.zeros((), dtype=torch.float32, device=meta.device)
    scaled = compiled(meta, type(meta).of(zero), grad)

    def view(grad, alpha):
        if alpha == 1:
            return grad.view(meta.shape)
        result = meta.empty()
        scaled(result, zero, grad, float(alpha))
        return result

    return view


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    x_undo, y_undo = (
        _one(problem["grad"], out, reduction) if out else None
        for out, reduction in zip(problem.outputs, Reduction.of_add_backward(problem), strict=True)
    )

    def call(grad, x_size, y_size, alpha, output_mask):
        return (x_undo(grad, 1) if x_undo else None), (y_undo(grad, alpha) if y_undo else None)

    return call
