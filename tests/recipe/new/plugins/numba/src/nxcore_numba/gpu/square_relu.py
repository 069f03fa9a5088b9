"""square_relu and its gradient on CUDA: memory as it lies, an element a thread and step."""

# mypy: ignore-errors

import numpy as np
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda


@cuda.jit
def square_relu(grad, x, out, count, back):
    """Write this thread's elements."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < count:
        value = np.float32(x[i])
        if value < 0:
            value = np.float32(0)
        by = value
        if back:
            by = np.float32(2) * np.float32(grad[i])
        out[i] = value * by
        i += step


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out = problem.outputs
    launch, device, count = Launch(square_relu, blocks_for(out.numel())), out.device, out.numel()

    def call(x):
        result = out.empty()
        launch(device, x, x, result, count, False)
        return result

    return call


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    out = problem.outputs
    launch, device, count = Launch(square_relu, blocks_for(out.numel())), out.device, out.numel()

    def call(grad, x):
        result = out.empty()
        launch(device, grad, x, result, count, True)
        return result

    return call
