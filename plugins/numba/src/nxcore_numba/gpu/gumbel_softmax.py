"""gumbel_softmax on CUDA: one thread for each row."""

# mypy: ignore-errors

import numpy as np

from nxcore_numba.gpu.launch import cuda
from nxcore_numba.gpu.rows import entry, first_largest, heat, launch, noisy, own_row, power, temperature


@cuda.jit
def gumbel_softmax(logits, noise, out, tau, number, pointed, hard, count, length, steps):
    """Write the weights of this thread's row."""
    row = own_row()
    if row < count:
        t = temperature(tau, number, pointed)
        top, place = first_largest(logits, noise, row, steps[0], steps[1], length, t)
        total = np.float32(0)
        for i in range(length):
            total += power(noisy(logits, noise, row, steps[0], steps[1], i, t), top)
        for i in range(length):
            p = power(noisy(logits, noise, row, steps[0], steps[1], i, t), top) / total
            if hard and p == p:
                p = np.float32(1) if i == place else np.float32(0)
            out[row * steps[2][0] + i * steps[2][1]] = p


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, device, taken = problem.outputs, problem.device, heat(problem)
    run, rest = launch(gumbel_softmax, problem)

    def call(logits, tau, hard, noise):
        result = out.empty()
        run(device, logits, noise, result, *taken(tau, logits), hard, *rest)
        return result

    return call


@cuda.jit
def gumbel_softmax_backward(grad, logits, noise, out, tau, number, pointed, count, length, steps):
    """Write the gradient of this thread's row."""
    row = own_row()
    if row < count:
        t = temperature(tau, number, pointed)
        top, _ = first_largest(logits, noise, row, steps[1], steps[2], length, t)
        total, moment = np.float32(0), np.float32(0)
        for i in range(length):
            share = power(noisy(logits, noise, row, steps[1], steps[2], i, t), top)
            total += share
            moment += share * entry(grad, row, steps[0], i)
        mean = moment / total
        for i in range(length):
            p = power(noisy(logits, noise, row, steps[1], steps[2], i, t), top) / total
            out[row * steps[3][0] + i * steps[3][1]] = p * (entry(grad, row, steps[0], i) - mean) / t


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    (out, *others), device, taken = problem.outputs, problem.device, heat(problem)
    run, rest = launch(gumbel_softmax_backward, problem)

    def call(grad, logits, tau, noise, mask):
        result = out.empty()
        run(device, grad, logits, noise, result, *taken(tau, logits), *rest)
        return result, *others

    return call
