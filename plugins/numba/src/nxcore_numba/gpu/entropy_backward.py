"""entropy_backward on CUDA."""

import numpy as np

from nxcore_numba.gpu.launch import cuda
from nxcore_numba.gpu.rows import largest, launch, own_row, power, sums


@cuda.jit
def entropy_backward(grad, logits, out, count, length, steps):
    """Write the gradient of this thread's row."""
    row = own_row()
    if row < count:
        at, step = row * steps[1][0], steps[1][1]
        top = largest(logits, at, step, length)
        total, moment = sums(logits, at, step, length, top)
        mean, g = moment / total, np.float32(grad[row * steps[0][0]])
        for i in range(length):
            value = np.float32(logits[at + i * step])
            p = power(value, top) / total
            below = top - value
            if p == 0:
                below = np.float32(0)
            out[row * steps[2][0] + i * steps[2][1]] = p * (below - mean) * g


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, device = problem.outputs, problem.device
    run, rest = launch(entropy_backward, problem)

    def call(grad, logits):
        result = out.empty()
        run(device, grad, logits, result, *rest)
        return result

    return call
