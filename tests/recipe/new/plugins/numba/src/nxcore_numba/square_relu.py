"""square_relu and its gradient on the CPU: memory as it lies, cut into parts."""

# mypy: ignore-errors

import numpy as np
from numba import prange, types
from nxcore_numba import threads
from nxcore_numba.half import TOKENS, load, store, type_of

I64 = types.int64
PARTS = 512


@threads.jit
def part(grad, x, out, first, last, back, token):
    """Write the elements from ``first`` to ``last``."""
    for i in range(first, last):
        value = load(x, i, token)
        if value < 0:
            value = np.float32(0)
        store(out, i, value * (2 * load(grad, i, token) if back else value), token)


@threads.jit
def serial(grad, x, out, count, back, token):
    """Do it on one thread."""
    part(grad, x, out, 0, count, back, token)


@threads.jit(parallel=True)
def parallel(grad, x, out, count, back, token):
    """Do it on all threads."""
    parts = min(count, PARTS)
    for p in prange(parts):
        part(grad, x, out, p * count // parts, (p + 1) * count // parts, back, token)


def compiled(problem):
    """Return the kernel for calls like ``problem``, and the token of their dtype."""
    signature = types.void(I64, I64, I64, I64, types.boolean, type_of(problem.dtype))
    return threads.team(serial, parallel, signature, problem.outputs.numel()), TOKENS[problem.dtype]


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, (kernel, token) = problem.outputs, compiled(problem)
    count = out.numel()

    def call(x):
        result = out.empty()
        kernel(0, x.data_ptr(), result.data_ptr(), count, False, token)
        return result

    return call


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    out, (kernel, token) = problem.outputs, compiled(problem)
    count = out.numel()

    def call(grad, x):
        result = out.empty()
        kernel(grad.data_ptr(), x.data_ptr(), result.data_ptr(), count, True, token)
        return result

    return call
