"""gumbel_softmax on the CPU: each row's softmax, or the first of its largest entries."""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore_numba import rows, threads
from nxcore_numba.half import store_any

I64 = types.int64
SIGNATURE = types.void(I64, I64, I64, I64, I64, types.float64, types.boolean, I64, I64, rows.TABLE)


@threads.jit
def harden(x, p):
    """Make of weights, and of how far below the largest each entry is, 1 at the first that is the largest."""
    found = False
    for i in range(x.size):
        if p[i] == p[i]:
            one = not found and p[i] > 0 and x[i] == 0
            found = found or one
            p[i] = 1.0 if one else 0.0


@threads.jit
def part(logits, noise, out, tau, hard, first, last, length, table):
    """Write the weights of rows ``first`` to ``last``."""
    x, p = np.empty(length), np.empty(length)
    for row in range(first, last):
        for i in range(length):
            x[i] = rows.entry(logits, table[0], row, i)
        rows.perturb(x, noise, table[1], row, tau)
        rows.softmax(x, p)
        if hard:
            harden(x, p)
        for i in range(length):
            store_any(out, row * table[2, 0] + i * table[2, 1], p[i], table[2, 2])


@threads.jit
def serial(logits, noise, out, address, kind, number, hard, count, length, table):
    """Do it on one thread."""
    tau = rows.temperature(address, kind, number)
    part(logits, noise, out, tau, hard, 0, count, length, table)


@threads.jit(parallel=True)
def parallel(logits, noise, out, address, kind, number, hard, count, length, table):
    """Do it on all threads."""
    tau = rows.temperature(address, kind, number)
    parts = min(count, rows.PARTS)
    for p in prange(parts):
        part(logits, noise, out, tau, hard, p * count // parts, (p + 1) * count // parts, length, table)


SIGNATURE_BACKWARD = types.void(
    I64,
    I64,
    I64,
    I64,
    I64,
    I64,
    types.float64,
    I64,
    I64,
    rows.TABLE,
)


@threads.jit
def part_backward(grad, logits, noise, out, tau, first, last, length, table):
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
def serial_backward(grad, logits, noise, out, address, kind, number, count, length, table):
    """Do it on one thread."""
    part_backward(grad, logits, noise, out, rows.temperature(address, kind, number), 0, count, length, table)


@threads.jit(parallel=True)
def parallel_backward(grad, logits, noise, out, address, kind, number, count, length, table):
    """Do it on all threads."""
    tau = rows.temperature(address, kind, number)
    parts = min(count, rows.PARTS)
    for p in prange(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        part_backward(grad, logits, noise, out, tau, first, last, length, table)


plan = rows.planner(serial, parallel, SIGNATURE)
plan_backward = rows.planner(serial_backward, parallel_backward, SIGNATURE_BACKWARD)
