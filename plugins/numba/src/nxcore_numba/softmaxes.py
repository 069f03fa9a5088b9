"""softmax, log_softmax on the CPU: a thread has whole lines, whose exponentials stay in a cache."""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore.plugin import Lines
from nxcore_numba import threads
from nxcore_numba.functions import exp
from nxcore_numba.half import FLOAT, TOKENS, load, peek, store, type_of
from nxcore_numba.lines import PARTS, RUN, TABLE, largest, start, table_of

I64 = types.int64


@threads.jit(fastmath={"contract", "reassoc"})
def powers(x, at, step, size, top, to, first, token):
    """Write the exponentials of distances from ``top``, and return their sum."""
    total = np.float32(0)
    if step == 1:
        for i in range(size):
            p = exp(load(x, at + i, token) - top)
            store(to, first + i, p, FLOAT)
            total += p
    else:
        for i in range(size):
            p = exp(load(x, at + i * step, token) - top)
            store(to, first + i, p, FLOAT)
            total += p
    return total


@threads.jit(fastmath={"contract"})
def scaled(y, to, step, room, size, scale, made):
    """Write exponentials as weights."""
    if step == 1:
        for i in range(size):
            store(y, to + i, peek(room, i) * scale, made)
    else:
        for i in range(size):
            store(y, to + i * step, peek(room, i) * scale, made)


@threads.jit(fastmath={"contract"})
def shifted(y, to, step, x, at, pace, size, top, level, token, made):
    """Write entries less the largest and less the logarithm of the sum."""
    if step == 1 and pace == 1:
        for i in range(size):
            store(y, to + i, (load(x, at + i, token) - top) - level, made)
    else:
        for i in range(size):
            store(y, to + i * step, (load(x, at + i * pace, token) - top) - level, made)


@threads.jit
def part(x, y, first, last, inner, length, log, table, token, made):
    """Write the lines from ``first`` to ``last``."""
    room = np.empty(length, np.float32)
    address, pace, step = room.ctypes.data, table[1, 2], table[0, 2]
    for line in range(first, last):
        at, to = start(table, 1, line, inner), start(table, 0, line, inner)
        top = largest(x, at, pace, length, token)
        total = 0.0
        for i in range(0, length, RUN):
            size = min(RUN, length - i)
            total += np.float64(powers(x, at + i * pace, pace, size, top, address, i, token))
        if log:
            shifted(y, to, step, x, at, pace, length, top, np.float32(np.log(total)), token, made)
        else:
            scaled(y, to, step, address, length, np.float32(1.0 / total), made)


@threads.jit
def serial(x, y, count, inner, length, log, table, token, made):
    """Do it on one thread."""
    part(x, y, 0, count, inner, length, log, table, token, made)


@threads.jit(parallel=True)
def parallel(x, y, count, inner, length, log, table, token, made):
    """Do it on all threads."""
    parts = min(count, PARTS)
    for p in prange(parts):
        part(x, y, p * count // parts, (p + 1) * count // parts, inner, length, log, table, token, made)


@threads.jit(fastmath={"contract", "reassoc"})
def added(g, at, step, y, place, pace, size, log, token):
    """Return the sum of gradients, or of their products with the result."""
    total = np.float32(0)
    if log and step == 1:
        for i in range(size):
            total += load(g, at + i, token)
    elif log:
        for i in range(size):
            total += load(g, at + i * step, token)
    elif step == 1 and pace == 1:
        for i in range(size):
            total += load(g, at + i, token) * load(y, place + i, token)
    else:
        for i in range(size):
            total += load(g, at + i * step, token) * load(y, place + i * pace, token)
    return total


@threads.jit(fastmath={"contract"})
def spread(out, to, gap, g, at, step, y, place, pace, size, total, log, token, made):
    """Write the gradients of a line."""
    if step == 1 and pace == 1 and gap == 1 and log:
        for i in range(size):
            store(out, to + i, load(g, at + i, token) - exp(load(y, place + i, token)) * total, made)
    elif step == 1 and pace == 1 and gap == 1:
        for i in range(size):
            store(out, to + i, load(y, place + i, token) * (load(g, at + i, token) - total), made)
    else:
        for i in range(size):
            by, v = load(g, at + i * step, token), load(y, place + i * pace, token)
            store(out, to + i * gap, by - exp(v) * total if log else v * (by - total), made)


@threads.jit
def part_backward(grad, y, out, first, last, inner, length, log, table, token, made):
    """Write the gradients of the lines from ``first`` to ``last``."""
    step, pace = table[1, 2], table[2, 2]
    for line in range(first, last):
        at, place, to = (
            start(table, 1, line, inner),
            start(table, 2, line, inner),
            start(table, 0, line, inner),
        )
        sums = 0.0
        for i in range(0, length, RUN):
            size = min(RUN, length - i)
            sums += np.float64(added(grad, at + i * step, step, y, place + i * pace, pace, size, log, token))
        total = np.float32(sums)
        spread(out, to, table[0, 2], grad, at, step, y, place, pace, length, total, log, token, made)


@threads.jit
def serial_backward(grad, y, out, count, inner, length, log, table, token, made):
    """Do it on one thread."""
    part_backward(grad, y, out, 0, count, inner, length, log, table, token, made)


@threads.jit(parallel=True)
def parallel_backward(grad, y, out, count, inner, length, log, table, token, made):
    """Do it on all threads."""
    parts = min(count, PARTS)
    for p in prange(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        part_backward(grad, y, out, first, last, inner, length, log, table, token, made)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, found, count = problem.outputs, Lines.along(problem), len(problem.tensors)
    given, made = problem.tensors[0].dtype, out.dtype
    both = (serial, parallel) if count == 1 else (serial_backward, parallel_backward)
    kinds = (*(I64,) * (count + 4), types.boolean, TABLE, type_of(given), type_of(made))
    kernel = threads.team(*both, types.void(*kinds), out.numel())
    log = problem.op.startswith("log_")
    rest = (found.count, found.inner, found.length, log, table_of(found), TOKENS[given], TOKENS[made])

    def call(*args):
        result = out.empty()
        kernel(*(t.data_ptr() for t in args[:count]), result.data_ptr(), *rest)
        return result

    return call
