"""entropy on CUDA: one thread for each row."""

# mypy: ignore-errors

import math

import numpy as np

from nxcore_numba.gpu.launch import cuda
from nxcore_numba.gpu.rows import entry, largest, launch, own_row, power, sums


@cuda.jit
def entropy(logits, out, count, length, steps):
    """Write the entropy of this thread's row."""
    row = own_row()
    if row < count:
        top = largest(logits, row, steps[0], length)
        total, moment = sums(logits, row, steps[0], length, top)
        out[row * steps[1][0]] = math.log(total) + moment / total


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, device = problem.outputs, problem.device
    run, rest = launch(entropy, problem)

    def call(logits):
        result = out.empty()
        run(device, logits, result, *rest)
        return result

    return call


@cuda.jit
def entropy_backward(grad, logits, out, count, length, steps):
    """Write the gradient of this thread's row."""
    row = own_row()
    if row < count:
        top = largest(logits, row, steps[1], length)
        total, moment = sums(logits, row, steps[1], length, top)
        mean, g = moment / total, entry(grad, row, steps[0], 0)
        for i in range(length):
            value = entry(logits, row, steps[1], i)
            p = power(value, top) / total
            below = top - value
            if p == 0:
                below = np.float32(0)
            out[row * steps[2][0] + i * steps[2][1]] = p * (below - mean) * g


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    out, device = problem.outputs, problem.device
    run, rest = launch(entropy_backward, problem)

    def call(grad, logits):
        result = out.empty()
        run(device, grad, logits, result, *rest)
        return result

    return call
