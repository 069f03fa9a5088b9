"""Short rows on CUDA, one thread for each row; shared by the operators on rows."""

# mypy: ignore-errors

import math

import numpy as np

from nxcore.plugin import Rows, TensorMeta
from nxcore_numba.gpu.launch import THREADS, Launch, cuda


@cuda.jit(device=True)
def own_row():
    """Return the row of this thread, which may lie past the last one."""
    return np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x


@cuda.jit(device=True)
def entry(x, row, steps, i):
    """Return an entry of a row in float32."""
    return np.float32(x[row * steps[0] + i * steps[1]])


@cuda.jit(device=True)
def noisy(logits, noise, row, logits_steps, noise_steps, i, tau):
    """Return a noisy logit."""
    return (
        entry(logits, row, logits_steps, i) - np.float32(math.log(entry(noise, row, noise_steps, i)))
    ) / tau


@cuda.jit(device=True)
def power(value, top):
    """Return the exponential of an entry, as a share of the largest one's."""
    return np.float32(math.exp(value - top))


@cuda.jit(device=True)
def largest(x, row, steps, length):
    """Return the largest entry of a row; a NaN may be passed over."""
    top = np.float32(-math.inf)
    for i in range(length):
        top = max(top, entry(x, row, steps, i))
    return top


@cuda.jit(device=True)
def sums(x, row, steps, length, top):
    """Return the sums of a row's exponentials, and of those times how far below the largest they are."""
    total, moment = np.float32(0), np.float32(0)
    for i in range(length):
        value = entry(x, row, steps, i)
        share = power(value, top)
        total += share
        if share != 0:
            moment += share * (top - value)
    return total, moment


@cuda.jit(device=True)
def first_largest(logits, noise, row, logits_steps, noise_steps, length, tau):
    """Return the largest noisy logit of a row, and its place; a NaN is passed over."""
    top, place = np.float32(-math.inf), 0
    for i in range(length):
        value = noisy(logits, noise, row, logits_steps, noise_steps, i, tau)
        if value > top:
            top, place = value, i
    return top, place


@cuda.jit(device=True)
def temperature(heat, number, pointed):
    """Return the temperature: that in memory if ``pointed``, or the number."""
    return np.float32(heat[0]) if pointed else np.float32(number)


def heat(problem):
    """Return what a temperature is to the kernels: ``found(tau, spare)`` is a tensor, a number and a flag."""
    if isinstance(problem["tau"], TensorMeta):
        return lambda tau, spare: (tau, np.float32(0), True)
    return lambda tau, spare: (spare, np.float32(tau), False)


def launch(kernel, problem):
    """Return the launch of a kernel on rows, and what it takes after its tensors."""
    found = Rows.of(problem)
    made = Launch(kernel, -(-found.count // THREADS))
    return made, (found.count, found.length, found.steps)
