"""batch_norm on the CPU: a channel's mean, then its deviations, then its output, one thread for each channel.

A channel stays in a cache from one pass to the next.
"""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore_numba import threads
from nxcore_numba.channel import count_of, length, runs, start, table_of
from nxcore_numba.half import FLOAT, KINDS, TOKENS, load, load_any, store, store_any, type_of

I64 = types.int64


@threads.jit(fastmath={"contract", "reassoc"})
def added(x, at, step, size, token):
    """Return the sum of one run."""
    total = np.float32(0)
    if step == 1:
        for j in range(size):
            total += load(x, at + j, token)
    else:
        for j in range(size):
            total += load(x, at + j * step, token)
    return total


@threads.jit(fastmath={"contract", "reassoc"})
def squared(x, at, step, size, mean, token):
    """Return the sum of the squared deviations of one run."""
    total = np.float32(0)
    if step == 1:
        for j in range(size):
            off = load(x, at + j, token) - mean
            total += off * off
    else:
        for j in range(size):
            off = load(x, at + j * step, token) - mean
            total += off * off
    return total


@threads.jit(fastmath={"contract"})
def scaled(y, to, pace, x, at, step, size, mean, scale, shift, token):
    """Write one run."""
    if step == 1 and pace == 1:
        for j in range(size):
            store(y, to + j, (load(x, at + j, token) - mean) * scale + shift, token)
    else:
        for j in range(size):
            store(y, to + j * pace, (load(x, at + j * step, token) - mean) * scale + shift, token)


@threads.jit
def one(outs, x, factors, eps, table, steps, count, kind, c, token):
    """Do one channel; ``outs`` are the addresses of y, mean and var, ``factors`` of weight and bias or 0."""
    base, step, size = c * steps[0], table[2, 1], runs(table)
    total = 0.0
    for r in range(size):
        total += np.float64(added(x, base + start(table, r, 1), step, length(table, r), token))
    exact = total / count
    mean = np.float32(exact)
    squares = 0.0
    for r in range(size):
        squares += np.float64(squared(x, base + start(table, r, 1), step, length(table, r), mean, token))
    squares -= count * (exact - mean) * (exact - mean)  # they were from the mean as it was rounded
    store(outs[1], c, mean, FLOAT)
    store(outs[2], c, np.float32(squares / (count - 1)), FLOAT)
    scale, shift = 1.0 / np.sqrt(squares / count + eps), 0.0
    if factors[0] != 0:
        scale *= load_any(factors[0], c, kind)
        shift = load_any(factors[1], c, kind)
    for r in range(size):
        at, to = base + start(table, r, 1), c * steps[1] + start(table, r, 2)
        scaled(
            outs[0], to, table[2, 2], x, at, step, length(table, r), mean, np.float32(scale),
            np.float32(shift), token,
        )  # fmt: skip


@threads.jit
def serial(outs, x, factors, eps, table, steps, channels, count, kind, token):
    """Do all channels on one thread."""
    for c in range(channels):
        one(outs, x, factors, eps, table, steps, count, kind, c, token)


@threads.jit(parallel=True)
def parallel(outs, x, factors, eps, table, steps, channels, count, kind, token):
    """Do all channels on all threads."""
    for c in prange(channels):
        one(outs, x, factors, eps, table, steps, count, kind, c, token)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, weight, (out, statistic, _) = problem["x"], problem["weight"], problem.outputs
    table, steps = table_of(x, out)
    signature = types.void(
        types.UniTuple(I64, 3), I64, types.UniTuple(I64, 2), types.float64, types.int64[:, ::1],
        types.int64[::1], I64, I64, I64, type_of(x.dtype),
    )  # fmt: skip
    kernel = threads.team(serial, parallel, signature, x.numel())
    kind = 0 if weight is None else KINDS[weight.dtype]
    last = x.shape[1], count_of(x), kind, TOKENS[x.dtype]

    def call(x, weight, bias, eps):
        results = out.empty(), statistic.empty(), statistic.empty()
        factors = (0, 0) if weight is None else (weight.data_ptr(), bias.data_ptr())
        outs = tuple([t.data_ptr() for t in results])
        kernel(outs, x.data_ptr(), factors, float(eps), table, steps, *last)
        return results

    return call


@threads.jit(fastmath={"contract", "reassoc"})
def multiplied(grad, at, step, x, place, pace, size, mean, token):
    """Return the sum of grad * (x - mean) over one run."""
    total = np.float32(0)
    if step == 1 and pace == 1:
        for j in range(size):
            total += load(grad, at + j, token) * (load(x, place + j, token) - mean)
    else:
        for j in range(size):
            total += load(grad, at + j * step, token) * (load(x, place + j * pace, token) - mean)
    return total


@threads.jit(fastmath={"contract"})
def spread(out, to, gap, grad, at, step, x, place, pace, size, mean, scale, level, slope, token):
    """Write one run of the gradient."""
    if step == 1 and pace == 1 and gap == 1:
        for j in range(size):
            off = load(x, place + j, token) - mean
            store(out, to + j, scale * (load(grad, at + j, token) - level - off * slope), token)
    else:
        for j in range(size):
            off = load(x, place + j * pace, token) - mean
            found = scale * (load(grad, at + j * step, token) - level - off * slope)
            store(out, to + j * gap, found, token)


@threads.jit
def one_backward(outs, given, weight, eps, table, steps, count, kind, c, token):
    """Do one channel; ``given`` are the addresses of x, grad, mean and var; what is 0 isn't there."""
    x, grad = given[0], given[1]
    x_at, grad_at, size = c * steps[0], c * steps[1], runs(table)
    mean = load(given[2], c, FLOAT)
    total, product = 0.0, 0.0
    for r in range(size):
        at, place, n = grad_at + start(table, r, 2), x_at + start(table, r, 1), length(table, r)
        total += np.float64(added(grad, at, table[2, 2], n, token))
        product += np.float64(multiplied(grad, at, table[2, 2], x, place, table[2, 1], n, mean, token))
    inverse = 1.0 / np.sqrt(np.float64(load(given[3], c, FLOAT)) * (count - 1) / count + eps)
    if outs[1] != 0:
        store_any(outs[1], c, product * inverse, kind)
    if outs[2] != 0:
        store_any(outs[2], c, total, kind)
    if outs[0] == 0:
        return
    scale = inverse * (load_any(weight, c, kind) if weight != 0 else 1.0)
    level, slope = np.float32(total / count), np.float32(product / count * inverse * inverse)
    for r in range(size):
        at, place, n = grad_at + start(table, r, 2), x_at + start(table, r, 1), length(table, r)
        to = c * steps[2] + start(table, r, 3)
        spread(
            outs[0], to, table[2, 3], grad, at, table[2, 2], x, place, table[2, 1], n, mean,
            np.float32(scale), level, slope, token,
        )  # fmt: skip


@threads.jit
def serial_backward(outs, given, weight, eps, table, steps, channels, count, kind, token):
    """Do all channels on one thread."""
    for c in range(channels):
        one_backward(outs, given, weight, eps, table, steps, count, kind, c, token)


@threads.jit(parallel=True)
def parallel_backward(outs, given, weight, eps, table, steps, channels, count, kind, token):
    """Do all channels on all threads."""
    for c in prange(channels):
        one_backward(outs, given, weight, eps, table, steps, count, kind, c, token)


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    x, weight, outs = problem["x"], problem["weight"], problem.outputs
    table, steps = table_of(x, problem["grad"], outs[0] or x)
    signature = types.void(
        types.UniTuple(I64, 3), types.UniTuple(I64, 4), I64, types.float64, types.int64[:, ::1],
        types.int64[::1], I64, I64, I64, type_of(x.dtype),
    )  # fmt: skip
    kernel = threads.team(serial_backward, parallel_backward, signature, x.numel())
    kind = 0 if weight is None else KINDS[weight.dtype]
    last = x.shape[1], count_of(x), kind, TOKENS[x.dtype]

    def call(grad, x, mean, var, weight, eps, output_mask):
        results = tuple([None if out is None else out.empty() for out in outs])
        addresses = tuple([0 if t is None else t.data_ptr() for t in results])
        given = tuple([t.data_ptr() for t in (x, grad, mean, var)])
        factor = 0 if weight is None else weight.data_ptr()
        kernel(addresses, given, factor, float(eps), table, steps, *last)
        return results

    return call
