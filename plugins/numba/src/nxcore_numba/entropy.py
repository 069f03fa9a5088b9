"""entropy on the CPU: log(sum_i exp(-d[i])) + sum_i p[i] d[i], with d[i] = max(logits) - logits[i]."""

# mypy: ignore-errors

import math

import numpy as np
from numba import prange, types

from nxcore_numba import rows, threads
from nxcore_numba.half import store_any

I64 = types.int64
SIGNATURE = types.void(I64, I64, I64, I64, rows.TABLE)


@threads.jit
def part(logits, out, first, last, length, table):
    """Write the entropies of rows ``first`` to ``last``."""
    x, p = np.empty(length), np.empty(length)
    for row in range(first, last):
        for i in range(length):
            x[i] = rows.entry(logits, table[0], row, i)
        total = rows.softmax(x, p)
        store_any(out, row * table[1, 0], math.log(total) + rows.dot(p, x), table[1, 2])


@threads.jit
def serial(logits, out, count, length, table):
    """Do it on one thread."""
    part(logits, out, 0, count, length, table)


@threads.jit(parallel=True)
def parallel(logits, out, count, length, table):
    """Do it on all threads."""
    parts = min(count, rows.PARTS)
    for p in prange(parts):
        part(logits, out, p * count // parts, (p + 1) * count // parts, length, table)


SIGNATURE_BACKWARD = types.void(I64, I64, I64, I64, I64, rows.TABLE)


@threads.jit
def part_backward(grad, logits, out, first, last, length, table):
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
def serial_backward(grad, logits, out, count, length, table):
    """Do it on one thread."""
    part_backward(grad, logits, out, 0, count, length, table)


@threads.jit(parallel=True)
def parallel_backward(grad, logits, out, count, length, table):
    """Do it on all threads."""
    parts = min(count, rows.PARTS)
    for p in prange(parts):
        part_backward(grad, logits, out, p * count // parts, (p + 1) * count // parts, length, table)


plan = rows.planner(serial, parallel, SIGNATURE)
plan_backward = rows.planner(serial_backward, parallel_backward, SIGNATURE_BACKWARD)
