"""group_norm on the CPU: a thread has whole groups, and goes through these channel by channel."""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore.plugin import factors_of
from nxcore_numba import threads
from nxcore_numba.half import FLOAT, TOKENS, load, peek, store, type_of
from nxcore_numba.lines import PARTS, RUN
from nxcore_numba.norms import NONE, SHARES, factor, moments, products, together

I64, F64 = types.int64, types.float64


@threads.jit(fastmath={"contract"})
def scaled(y, x, at, size, mean, scale, shift, token):
    """Write some entries less the mean, times the scale, and the shift."""
    for i in range(size):
        store(y, at + i, (load(x, at + i, token) - mean) * scale + shift, token)


@threads.jit
def part(given, y, eps, first, last, sizes, token, kind, more):
    """Write the groups from ``first`` to ``last``; ``sizes`` are groups, channels and entries of each."""
    x, w, b = given
    groups, channels, size = sizes
    for line in range(first, last):
        at, own = line * channels * size, line % groups * channels
        mean, scale = moments(x, at, 1, channels * size, eps, True, token)
        for c in range(channels):
            by = np.float32(scale) * factor(w, own + c, kind, 1.0)
            scaled(y, x, at + c * size, size, mean, by, factor(b, own + c, more, 0.0), token)


@threads.jit
def serial(given, y, eps, count, sizes, token, kind, more):
    """Do it on one thread."""
    part(given, y, eps, 0, count, sizes, token, kind, more)


@threads.jit(parallel=True)
def parallel(given, y, eps, count, sizes, token, kind, more):
    """Do it on all threads."""
    parts = min(count, PARTS)
    for p in prange(parts):
        part(given, y, eps, p * count // parts, (p + 1) * count // parts, sizes, token, kind, more)


@threads.jit(fastmath={"contract"})
def spread(out, g, x, at, size, mean, scale, weight, shift, slope, token):
    """Write the gradient of some entries."""
    for i in range(size):
        by = load(g, at + i, token) * weight - shift
        store(out, at + i, scale * (by - (load(x, at + i, token) - mean) * slope), token)


@threads.jit
def part_backward(given, out, eps, first, last, sizes, weights, biases, token, kind):
    """Write the gradients of some groups, and add to the sums of the factors'."""
    g, x, w = given
    groups, channels, size = sizes
    for line in range(first, last):
        at, own = line * channels * size, line % groups * channels
        mean, scale = moments(x, at, 1, channels * size, eps, True, token)
        total, dot = 0.0, 0.0
        for c in range(channels):
            place, sums, dots = at + c * size, 0.0, 0.0
            for i in range(0, size, RUN):
                found = products(
                    g, place + i, 1, x, place + i, 1, mean, 0, 0, min(RUN, size - i), token, NONE
                )
                sums += np.float64(found[0])
                dots += np.float64(found[1])
            by = np.float64(factor(w, own + c, kind, 1.0))
            total += by * sums
            dot += by * dots
            store(weights, own + c, peek(weights, own + c) + np.float32(dots * scale), FLOAT)
            store(biases, own + c, peek(biases, own + c) + np.float32(sums), FLOAT)
        if out != 0:
            count = channels * size
            shift, slope = np.float32(total / count), np.float32(dot / count * scale * scale)
            for c in range(channels):
                by = factor(w, own + c, kind, 1.0)
                spread(out, g, x, at + c * size, size, mean, np.float32(scale), by, shift, slope, token)


@threads.jit
def serial_backward(given, outs, eps, count, sizes, token, kind, made):
    """Do it on one thread."""
    parts, channels = min(count, SHARES), sizes[0] * sizes[1]
    weights, biases = np.zeros((parts, channels), np.float32), np.zeros((parts, channels), np.float32)
    for p in range(parts):
        first, last, step = p * count // parts, (p + 1) * count // parts, 4 * p * channels
        own, other = weights.ctypes.data + step, biases.ctypes.data + step
        part_backward(given, outs[0], eps, first, last, sizes, own, other, token, kind)
    together(weights, outs[1], made)
    together(biases, outs[2], made)


@threads.jit(parallel=True)
def parallel_backward(given, outs, eps, count, sizes, token, kind, made):
    """Do it on all threads."""
    parts, channels = min(count, SHARES), sizes[0] * sizes[1]
    weights, biases = np.zeros((parts, channels), np.float32), np.zeros((parts, channels), np.float32)
    base, low = weights.ctypes.data, biases.ctypes.data
    for p in prange(parts):
        first, last, step = p * count // parts, (p + 1) * count // parts, 4 * p * channels
        part_backward(given, outs[0], eps, first, last, sizes, base + step, low + step, token, kind)
    together(weights, outs[1], made)
    together(biases, outs[2], made)


def _sizes(problem):
    """Return the number of groups of all images, the sizes of one, and the tokens with their types."""
    x, groups, factors = problem["x"], problem["num_groups"], factors_of(problem)
    channels = x.shape[1] // groups
    sizes = (groups, channels, x.numel() // (x.shape[0] * x.shape[1]))
    dtypes = [factors[name].dtype if name in factors else None for name in ("weight", "bias")]
    made = dtypes[0] or dtypes[1] or x.dtype
    tokens = [TOKENS[x.dtype], *(NONE if dtype is None else TOKENS[dtype] for dtype in (*dtypes, made))]
    kinds = [type_of(x.dtype), *(types.int8 if d is None else type_of(d) for d in (*dtypes, made))]
    return x.shape[0] * groups, sizes, tokens, kinds


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, eps = problem.outputs, float(problem["eps"])
    count, sizes, tokens, kinds = _sizes(problem)
    three = types.UniTuple(I64, 3)
    kernel = threads.team(serial, parallel, types.void(three, I64, F64, I64, three, *kinds[:3]), out.numel())

    def call(x, groups, weight, bias, _eps):
        result = out.empty()
        given = (x.data_ptr(), *(0 if t is None else t.data_ptr() for t in (weight, bias)))
        kernel(given, result.data_ptr(), eps, count, sizes, *tokens[:3])
        return result

    return call


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    outs, eps = problem.outputs, float(problem["eps"])
    count, sizes, (token, kind, _, made), kinds = _sizes(problem)
    three = types.UniTuple(I64, 3)
    signature = types.void(three, three, F64, I64, three, kinds[0], kinds[1], kinds[3])
    kernel = threads.team(serial_backward, parallel_backward, signature, problem["x"].numel())

    def call(grad, x, groups, weight, *_):
        results = tuple([None if out is None else out.empty() for out in outs])
        addresses = tuple([0 if t is None else t.data_ptr() for t in results])
        given = (grad.data_ptr(), x.data_ptr(), 0 if weight is None else weight.data_ptr())
        kernel(given, addresses, eps, count, sizes, token, kind, made)
        return results

    return call
