"""rms_norm on the CPU: a thread has whole lines, and adds up the weight's gradient over those of its part."""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore.plugin import Lines
from nxcore_numba import threads
from nxcore_numba.half import FLOAT, TOKENS, load, peek, store, type_of
from nxcore_numba.lines import PARTS, RUN, TABLE, start, table_of

I64 = types.int64
SHARES = 16
"""The most parts of a gradient's lines, each with its sums of the weight's gradient."""


@threads.jit(fastmath={"contract", "reassoc"})
def product(g, at, step, x, place, pace, w, first, size, token, kind):
    """Return the sum of products of three rows, of which that at ``w`` is 1 where ``w`` is 0."""
    total = np.float32(0)
    if w == 0 and step == 1 and pace == 1:
        for i in range(size):
            total += load(g, at + i, token) * load(x, place + i, token)
    elif w == 0:
        for i in range(size):
            total += load(g, at + i * step, token) * load(x, place + i * pace, token)
    elif step == 1 and pace == 1:
        for i in range(size):
            total += load(g, at + i, token) * load(x, place + i, token) * load(w, first + i, kind)
    else:
        for i in range(size):
            total += (
                load(g, at + i * step, token) * load(x, place + i * pace, token) * load(w, first + i, kind)
            )
    return total


@threads.jit(fastmath={"contract"})
def scaled(y, to, step, x, at, pace, w, size, scale, token, kind):
    """Write a line times its scale and the weight."""
    if w == 0:
        for i in range(size):
            store(y, to + i * step, load(x, at + i * pace, token) * scale, token)
    elif step == 1 and pace == 1:
        for i in range(size):
            store(y, to + i, load(x, at + i, token) * scale * load(w, i, kind), token)
    else:
        for i in range(size):
            store(y, to + i * step, load(x, at + i * pace, token) * scale * load(w, i, kind), token)


@threads.jit
def dot(g, at, step, x, place, pace, w, length, token, kind):
    """Return the sum of products of whole rows."""
    total = 0.0
    for i in range(0, length, RUN):
        size = min(RUN, length - i)
        total += np.float64(
            product(g, at + i * step, step, x, place + i * pace, pace, w, i, size, token, kind)
        )
    return total


@threads.jit
def part(x, w, y, eps, first, last, inner, length, table, token, kind):
    """Write the lines from ``first`` to ``last``."""
    for line in range(first, last):
        at, to, pace = start(table, 1, line, inner), start(table, 0, line, inner), table[1, 2]
        squares = dot(x, at, pace, x, at, pace, 0, length, token, kind)
        scale = np.float32(1.0 / np.sqrt(squares / length + eps))
        scaled(y, to, table[0, 2], x, at, pace, w, length, scale, token, kind)


@threads.jit
def serial(x, w, y, eps, count, inner, length, table, token, kind):
    """Do it on one thread."""
    part(x, w, y, eps, 0, count, inner, length, table, token, kind)


@threads.jit(parallel=True)
def parallel(x, w, y, eps, count, inner, length, table, token, kind):
    """Do it on all threads."""
    parts = min(count, PARTS)
    for p in prange(parts):
        part(x, w, y, eps, p * count // parts, (p + 1) * count // parts, inner, length, table, token, kind)


@threads.jit(fastmath={"contract"})
def spread(out, to, gap, g, at, step, x, place, pace, w, size, scale, slope, token, kind):
    """Write the gradient of a line."""
    if w == 0:
        for i in range(size):
            by, v = load(g, at + i * step, token), load(x, place + i * pace, token)
            store(out, to + i * gap, scale * (by - v * slope), token)
    elif step == 1 and pace == 1 and gap == 1:
        for i in range(size):
            by = load(g, at + i, token) * load(w, i, kind)
            store(out, to + i, scale * (by - load(x, place + i, token) * slope), token)
    else:
        for i in range(size):
            by = load(g, at + i * step, token) * load(w, i, kind)
            store(out, to + i * gap, scale * (by - load(x, place + i * pace, token) * slope), token)


@threads.jit(fastmath={"contract"})
def shared(sums, g, at, step, x, place, pace, size, scale, token):
    """Add a line to the sums of the weight's gradient."""
    if step == 1 and pace == 1:
        for i in range(size):
            store(sums, i, peek(sums, i) + load(g, at + i, token) * load(x, place + i, token) * scale, FLOAT)
    else:
        for i in range(size):
            by = load(g, at + i * step, token) * load(x, place + i * pace, token) * scale
            store(sums, i, peek(sums, i) + by, FLOAT)


@threads.jit
def part_backward(given, outs, eps, first, last, inner, length, table, sums, token, kind):
    """Write the gradients of the lines from ``first`` to ``last``; ``sums`` is 0 where no sums are wanted."""
    g, x, w = given
    for line in range(first, last):
        at, place, to = (
            start(table, 1, line, inner),
            start(table, 2, line, inner),
            start(table, 0, line, inner),
        )
        step, pace = table[1, 2], table[2, 2]
        squares = dot(x, place, pace, x, place, pace, 0, length, token, kind)
        scale = 1.0 / np.sqrt(squares / length + eps)
        if outs[0] != 0:
            products = dot(g, at, step, x, place, pace, w, length, token, kind)
            slope = np.float32(products / length * scale * scale)
            spread(
                outs[0], to, table[0, 2], g, at, step, x, place, pace, w, length, np.float32(scale), slope,
                token, kind,
            )  # fmt: skip
        if outs[1] != 0:
            shared(sums, g, at, step, x, place, pace, length, np.float32(scale), token)


@threads.jit
def together(sums, out, kind):
    """Write the sums of all parts."""
    for i in range(sums.shape[1]):
        total = 0.0
        for p in range(sums.shape[0]):
            total += sums[p, i]
        store(out, i, np.float32(total), kind)


@threads.jit
def serial_backward(given, outs, eps, count, inner, length, table, token, kind):
    """Do it on one thread."""
    parts = min(count, SHARES)
    sums = np.zeros((parts, length if outs[1] != 0 else 0), np.float32)
    for p in range(parts):
        first, last, own = (
            p * count // parts,
            (p + 1) * count // parts,
            sums.ctypes.data + 4 * p * sums.shape[1],
        )
        part_backward(given, outs, eps, first, last, inner, length, table, own, token, kind)
    if outs[1] != 0:
        together(sums, outs[1], kind)


@threads.jit(parallel=True)
def parallel_backward(given, outs, eps, count, inner, length, table, token, kind):
    """Do it on all threads."""
    parts = min(count, SHARES)
    sums = np.zeros((parts, length if outs[1] != 0 else 0), np.float32)
    base = sums.ctypes.data
    for p in prange(parts):
        first, last, own = p * count // parts, (p + 1) * count // parts, base + 4 * p * sums.shape[1]
        part_backward(given, outs, eps, first, last, inner, length, table, own, token, kind)
    if outs[1] != 0:
        together(sums, outs[1], kind)


def _last(problem):
    """Return the sizes, the table and the tokens of a call, and the types of the last two."""
    found, weight, x = Lines.rows(problem), problem["weight"], problem["x"]
    kind = x.dtype if weight is None else weight.dtype
    rest = (found.count, found.inner, found.length, table_of(found), TOKENS[x.dtype], TOKENS[kind])
    return rest, (I64, I64, I64, TABLE, type_of(x.dtype), type_of(kind))


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, eps = problem.outputs, float(problem["eps"])
    rest, kinds = _last(problem)
    kernel = threads.team(serial, parallel, types.void(I64, I64, I64, types.float64, *kinds), out.numel())

    def call(x, shape, weight, _eps):
        result = out.empty()
        kernel(x.data_ptr(), 0 if weight is None else weight.data_ptr(), result.data_ptr(), eps, *rest)
        return result

    return call


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    outs, eps = problem.outputs, float(problem["eps"])
    rest, kinds = _last(problem)
    signature = types.void(types.UniTuple(I64, 3), types.UniTuple(I64, 2), types.float64, *kinds)
    kernel = threads.team(serial_backward, parallel_backward, signature, problem["x"].numel())

    def call(grad, x, shape, weight, *_):
        results = tuple([None if out is None else out.empty() for out in outs])
        addresses = tuple([0 if t is None else t.data_ptr() for t in results])
        given = (grad.data_ptr(), x.data_ptr(), 0 if weight is None else weight.data_ptr())
        kernel(given, addresses, eps, *rest)
        return results

    return call
