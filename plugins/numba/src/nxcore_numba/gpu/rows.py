"""Short rows on CUDA, a thread a row: what operators on rows share."""

import math

import numpy as np

from nxcore.plugin import Rows
from nxcore_numba.gpu.launch import THREADS, Launch, cuda


@cuda.jit(device=True)
def own_row():
    """Return the row of this thread, which may lie past the last one."""
    return np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x


@cuda.jit(device=True)
def largest(x, at, step, length):
    """Return the largest entry of a row; a NaN may be passed over."""
    top = np.float32(-math.inf)
    for i in range(length):
        top = max(top, np.float32(x[at + i * step]))
    return top


@cuda.jit(device=True)
def power(value, top):
    """Return the exponential of an entry, as a share of the largest one's."""
    return np.float32(math.exp(value - top))


@cuda.jit(device=True)
def sums(x, at, step, length, top):
    """Return the sums of a row's exponentials, and of those times how far below the largest they are."""
    total, moment = np.float32(0), np.float32(0)
    for i in range(length):
        value = np.float32(x[at + i * step])
        share = power(value, top)
        total += share
        if share != 0:
            moment += share * (top - value)
    return total, moment


def launch(kernel, problem):
    """Return the launch of a kernel on rows, and what it takes after its tensors."""
    found = Rows.of(problem)
    made = Launch(kernel, -(-found.count // THREADS))
    return made, (found.count, found.length, found.steps)
