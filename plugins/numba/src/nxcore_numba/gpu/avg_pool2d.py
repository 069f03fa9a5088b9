"""avg_pool2d on CUDA: one thread for each output."""

# mypy: ignore-errors

import numpy as np

from nxcore_numba.gpu.average import bind, counted
from nxcore_numba.gpu.image import at, least, most, place
from nxcore_numba.gpu.launch import cuda


@cuda.jit
def pool(out, x, walk, image, kernel, stride, padding, xs, outs, divisor, padded):
    """Write the mean of each window; pairs are (vertical, horizontal)."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, p, q = place(i, walk)
        top, left = p * stride[0] - padding[0], q * stride[1] - padding[1]
        total = np.float32(0)
        for row in range(most(top, 0), least(top + kernel[0], image[0])):
            for column in range(most(left, 0), least(left + kernel[1], image[1])):
                total += np.float32(x[at(n, c, row, column, xs)])
        count = divisor
        if count == 0:
            count = counted(top, kernel[0], padding[0], image[0], padded)
            count *= counted(left, kernel[1], padding[1], image[1], padded)
        out[at(n, c, p, q, outs)] = total / np.float32(count)
        i += step


def plan(problem):
    """Return a callable for calls like ``problem``."""
    return bind(pool, problem)


@cuda.jit
def spread(out, grad, walk, outputs, kernel, stride, padding, grads, outs, divisor, padded):
    """Add the divided gradients of an input's windows; pairs are (vertical, horizontal)."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, y, x = place(i, walk)
        y, x = y + padding[0], x + padding[1]
        total = np.float32(0)
        for p in range(
            most(y - kernel[0] + stride[0], 0) // stride[0], least(y // stride[0] + 1, outputs[0])
        ):
            for q in range(
                most(x - kernel[1] + stride[1], 0) // stride[1], least(x // stride[1] + 1, outputs[1])
            ):
                count = divisor
                if count == 0:
                    top, left = p * stride[0] - padding[0], q * stride[1] - padding[1]
                    count = counted(top, kernel[0], padding[0], walk[2], padded)
                    count *= counted(left, kernel[1], padding[1], walk[3], padded)
                total += np.float32(grad[at(n, c, p, q, grads)]) / np.float32(count)
        out[at(n, c, y - padding[0], x - padding[1], outs)] = total
        i += step


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    return bind(spread, problem, back=True)
