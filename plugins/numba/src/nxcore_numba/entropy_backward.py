"""entropy_backward on the CPU: the probabilities once more, and one pass over each row."""

import numpy as np
from numba import prange, types

from nxcore_numba import rows, threads
from nxcore_numba.half import store_any

I64 = types.int64
SIGNATURE = types.void(I64, I64, I64, I64, I64, rows.TABLE)


@threads.jit
def part(grad, logits, out, first, last, length, table):
    """Write the gradients of rows ``first`` to ``last``."""
    x, p = np.empty(length), np.empty(length)
    for row in range(first, last):
        for i in range(length):
            x[i] = rows.entry(logits, table[1], row, i)
        rows.softmax(x, p)
        mean, g = rows.dot(p, x), rows.entry(grad, table[0], row, 0)
        for i in range(length):
            store_any(out, row * table[2, 0] + i * table[2, 1], p[i] * (x[i] - mean) * g, table[2, 2])


@threads.jit
def serial(grad, logits, out, count, length, table):
    """Do it on one thread."""
    part(grad, logits, out, 0, count, length, table)


@threads.jit(parallel=True)
def parallel(grad, logits, out, count, length, table):
    """Do it on all threads."""
    parts = min(count, rows.PARTS)
    for p in prange(parts):
        part(grad, logits, out, p * count // parts, (p + 1) * count // parts, length, table)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, rest = problem.outputs, rows.tables(problem)
    kernel = threads.team(serial, parallel, SIGNATURE, problem["logits"].numel())

    def call(grad, logits):
        result = out.empty()
        kernel(grad.data_ptr(), logits.data_ptr(), result.data_ptr(), *rest)
        return result

    return call
