"""gumbel_softmax_backward on the CPU: the weights once more, and one pass over each row."""

import numpy as np
from numba import prange, types

from nxcore_numba import rows, threads
from nxcore_numba.half import store_any

I64 = types.int64
SIGNATURE = types.void(I64, I64, I64, I64, I64, I64, types.float64, I64, I64, rows.TABLE)


@threads.jit
def part(grad, logits, noise, out, tau, first, last, length, table):
    """Write the gradients of rows ``first`` to ``last``."""
    x, p = np.empty(length), np.empty(length)
    for row in range(first, last):
        for i in range(length):
            x[i] = rows.entry(logits, table[1], row, i)
        rows.perturb(x, noise, table[2], row, tau)
        rows.softmax(x, p)
        for i in range(length):
            x[i] = rows.entry(grad, table[0], row, i)
        mean = rows.dot(p, x)
        for i in range(length):
            store_any(out, row * table[3, 0] + i * table[3, 1], p[i] * (x[i] - mean) / tau, table[3, 2])


@threads.jit
def serial(grad, logits, noise, out, address, kind, number, count, length, table):
    """Do it on one thread."""
    part(grad, logits, noise, out, rows.temperature(address, kind, number), 0, count, length, table)


@threads.jit(parallel=True)
def parallel(grad, logits, noise, out, address, kind, number, count, length, table):
    """Do it on all threads."""
    tau = rows.temperature(address, kind, number)
    parts = min(count, rows.PARTS)
    for p in prange(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        part(grad, logits, noise, out, tau, first, last, length, table)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    (out, *others), heat, rest = problem.outputs, rows.heat(problem), rows.tables(problem)
    kernel = threads.team(serial, parallel, SIGNATURE, problem["logits"].numel())

    def call(grad, logits, tau, noise, mask):  # noqa: ARG001  it is part of the plan
        result = out.empty()
        addresses = (t.data_ptr() for t in (grad, logits, noise, result))
        kernel(*addresses, *heat(tau), *rest)
        return result, *others

    return call
