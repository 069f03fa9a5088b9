"""rms_norm, layer_norm on the CPU: a thread has whole lines, and adds up the factors' gradients."""

# mypy: ignore-errors

import numpy as np
from numba import prange, types
from numba.extending import overload

from nxcore.plugin import Lines, factors_of
from nxcore_numba import threads
from nxcore_numba.half import FLOAT, TOKENS, load, peek, store, type_of
from nxcore_numba.lines import PARTS, RUN, TABLE, start, table_of

I64, F32, F64 = types.int64, types.float32, types.float64
SHARES = 16
"""The most parts of a gradient's lines, each with its sums of the factors' gradients."""

NONE = np.int8(0)
"""The token of a factor that isn't there."""


def factor(address, index, token, other):
    """Return an entry of a factor as float32; ``other`` where there is no factor."""


@overload(factor)
def _factor(address, index, token, other):
    if token == types.int8:
        return lambda address, index, token, other: np.float32(other)
    return lambda address, index, token, other: load(address, index, token)


@threads.jit(fastmath={"contract", "reassoc"})
def added(x, at, step, size, token):
    """Return the sum of some entries."""
    total = np.float32(0)
    if step == 1:
        for i in range(size):
            total += load(x, at + i, token)
    else:
        for i in range(size):
            total += load(x, at + i * step, token)
    return total


@threads.jit(fastmath={"contract", "reassoc"})
def spreads(x, at, step, size, mean, token):
    """Return the sums of some entries less the mean, and of the squares of these."""
    total, squares = np.float32(0), np.float32(0)
    if step == 1:
        for i in range(size):
            v = load(x, at + i, token) - mean
            total += v
            squares += v * v
    else:
        for i in range(size):
            v = load(x, at + i * step, token) - mean
            total += v
            squares += v * v
    return total, squares


@threads.jit(fastmath={"contract", "reassoc"})
def products(g, at, step, x, place, pace, mean, w, first, size, token, kind):
    """Return the sums of weighted gradients, and of these times the entries less the mean."""
    total, dot = np.float32(0), np.float32(0)
    if step == 1 and pace == 1:
        for i in range(size):
            h = load(g, at + i, token) * factor(w, first + i, kind, 1.0)
            total += h
            dot += h * (load(x, place + i, token) - mean)
    else:
        for i in range(size):
            h = load(g, at + i * step, token) * factor(w, first + i, kind, 1.0)
            total += h
            dot += h * (load(x, place + i * pace, token) - mean)
    return total, dot


@threads.jit
def moments(x, at, step, length, eps, centred, token):
    """Return the mean of a line, 0 unless it is centred, and one over the root of its mean square."""
    mean, total, squares = 0.0, 0.0, 0.0
    if centred:
        for i in range(0, length, RUN):
            mean += np.float64(added(x, at + i * step, step, min(RUN, length - i), token))
        mean /= length
    about = np.float32(mean)
    for i in range(0, length, RUN):
        rest, found = spreads(x, at + i * step, step, min(RUN, length - i), about, token)
        total += np.float64(rest)
        squares += np.float64(found)
    if centred:  # what rounding has left of the mean
        rest = total / length
        mean, squares = np.float64(about) + rest, squares - rest * total
    return np.float32(mean), 1.0 / np.sqrt(squares / length + eps)


@threads.jit(fastmath={"contract"})
def scaled(y, to, gap, x, at, pace, w, b, size, mean, scale, token, kind, more):
    """Write a line less its mean, times its scale and the weight, and the bias."""
    if gap == 1 and pace == 1:
        for i in range(size):
            v = (load(x, at + i, token) - mean) * scale * factor(w, i, kind, 1.0)
            store(y, to + i, v + factor(b, i, more, -0.0), token)
    else:
        for i in range(size):
            v = (load(x, at + i * pace, token) - mean) * scale * factor(w, i, kind, 1.0)
            store(y, to + i * gap, v + factor(b, i, more, -0.0), token)


@threads.jit
def part(given, y, eps, centred, first, last, inner, length, table, token, kind, more):
    """Write the lines from ``first`` to ``last``."""
    x, w, b = given
    for line in range(first, last):
        at, to, pace = start(table, 1, line, inner), start(table, 0, line, inner), table[1, 2]
        mean, scale = moments(x, at, pace, length, eps, centred, token)
        scaled(y, to, table[0, 2], x, at, pace, w, b, length, mean, np.float32(scale), token, kind, more)


@threads.jit
def serial(given, y, eps, centred, count, inner, length, table, token, kind, more):
    """Do it on one thread."""
    part(given, y, eps, centred, 0, count, inner, length, table, token, kind, more)


@threads.jit(parallel=True)
def parallel(given, y, eps, centred, count, inner, length, table, token, kind, more):
    """Do it on all threads."""
    parts = min(count, PARTS)
    for p in prange(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        part(given, y, eps, centred, first, last, inner, length, table, token, kind, more)


@threads.jit(fastmath={"contract"})
def spread(out, to, gap, g, at, step, x, place, pace, w, size, mean, scale, shift, slope, token, kind):
    """Write the gradient of a line."""
    if step == 1 and pace == 1 and gap == 1:
        for i in range(size):
            by = load(g, at + i, token) * factor(w, i, kind, 1.0) - shift
            store(out, to + i, scale * (by - (load(x, place + i, token) - mean) * slope), token)
    else:
        for i in range(size):
            by = load(g, at + i * step, token) * factor(w, i, kind, 1.0) - shift
            store(out, to + i * gap, scale * (by - (load(x, place + i * pace, token) - mean) * slope), token)


@threads.jit(fastmath={"contract"})
def shared(sums, g, at, step, x, place, pace, size, mean, scale, token):
    """Add a line to the sums of the weight's gradient."""
    if step == 1 and pace == 1:
        for i in range(size):
            by = load(g, at + i, token) * ((load(x, place + i, token) - mean) * scale)
            store(sums, i, peek(sums, i) + by, FLOAT)
    else:
        for i in range(size):
            by = load(g, at + i * step, token) * ((load(x, place + i * pace, token) - mean) * scale)
            store(sums, i, peek(sums, i) + by, FLOAT)


@threads.jit
def counted(sums, g, at, step, size, token):
    """Add a line to the sums of the bias's gradient."""
    if step == 1:
        for i in range(size):
            store(sums, i, peek(sums, i) + load(g, at + i, token), FLOAT)
    else:
        for i in range(size):
            store(sums, i, peek(sums, i) + load(g, at + i * step, token), FLOAT)


@threads.jit
def part_backward(given, outs, eps, centred, first, last, inner, length, table, weights, biases, token, kind):
    """Write the gradients of the lines from ``first`` to ``last``, and add to the sums that are wanted."""
    g, x, w = given
    for line in range(first, last):
        at, place, to = (
            start(table, 1, line, inner),
            start(table, 2, line, inner),
            start(table, 0, line, inner),
        )
        step, pace = table[1, 2], table[2, 2]
        mean, scale = moments(x, place, pace, length, eps, centred, token)
        if outs[0] != 0:
            total, dot = 0.0, 0.0
            for i in range(0, length, RUN):
                size = min(RUN, length - i)
                found = products(
                    g, at + i * step, step, x, place + i * pace, pace, mean, w, i, size, token, kind
                )
                total += np.float64(found[0])
                dot += np.float64(found[1])
            shift = np.float32(total / length if centred else 0.0)
            slope = np.float32(dot / length * scale * scale)
            spread(
                outs[0], to, table[0, 2], g, at, step, x, place, pace, w, length, mean, np.float32(scale),
                shift, slope, token, kind,
            )  # fmt: skip
        if outs[1] != 0:
            shared(weights, g, at, step, x, place, pace, length, mean, np.float32(scale), token)
        if outs[2] != 0:
            counted(biases, g, at, step, length, token)


@threads.jit
def together(sums, out, made):
    """Write the sums of all parts."""
    if out != 0:
        for i in range(sums.shape[1]):
            total = 0.0
            for p in range(sums.shape[0]):
                total += sums[p, i]
            store(out, i, np.float32(total), made)


@threads.jit
def serial_backward(given, outs, eps, centred, count, inner, length, table, token, kind, made):
    """Do it on one thread."""
    parts = min(count, SHARES)
    weights = np.zeros((parts, length if outs[1] != 0 else 0), np.float32)
    biases = np.zeros((parts, length if outs[2] != 0 else 0), np.float32)
    for p in range(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        own = weights.ctypes.data + 4 * p * weights.shape[1]
        other = biases.ctypes.data + 4 * p * biases.shape[1]
        part_backward(given, outs, eps, centred, first, last, inner, length, table, own, other, token, kind)
    together(weights, outs[1], made)
    together(biases, outs[2], made)


@threads.jit(parallel=True)
def parallel_backward(given, outs, eps, centred, count, inner, length, table, token, kind, made):
    """Do it on all threads."""
    parts = min(count, SHARES)
    weights = np.zeros((parts, length if outs[1] != 0 else 0), np.float32)
    biases = np.zeros((parts, length if outs[2] != 0 else 0), np.float32)
    base, low = weights.ctypes.data, biases.ctypes.data
    for p in prange(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        own, other = base + 4 * p * weights.shape[1], low + 4 * p * biases.shape[1]
        part_backward(given, outs, eps, centred, first, last, inner, length, table, own, other, token, kind)
    together(weights, outs[1], made)
    together(biases, outs[2], made)


def _last(problem):
    """Return whether lines are centred, the sizes, the table and the tokens of a call; and their types.

    The last three tokens are of the weight, of the bias, and of the gradients of both.
    """
    found, factors, x = Lines.rows(problem), factors_of(problem), problem["x"]
    dtypes = [factors[name].dtype if name in factors else None for name in ("weight", "bias")]
    made = dtypes[0] or dtypes[1] or x.dtype
    tokens = [TOKENS[x.dtype], *(NONE if dtype is None else TOKENS[dtype] for dtype in (*dtypes, made))]
    kinds = [type_of(x.dtype), *(types.int8 if d is None else type_of(d) for d in (*dtypes, made))]
    rest = (problem.op.startswith("layer"), found.count, found.inner, found.length, table_of(found))
    return rest, (types.boolean, I64, I64, I64, TABLE), tokens, kinds


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, eps = problem.outputs, float(problem["eps"])
    rest, kinds, tokens, of_tokens = _last(problem)
    signature = types.void(types.UniTuple(I64, 3), I64, F64, *kinds, *of_tokens[:3])
    kernel = threads.team(serial, parallel, signature, out.numel())

    def call(x, shape, weight, *more):
        result, bias = out.empty(), more[0] if len(more) > 1 else None
        given = (x.data_ptr(), *(0 if t is None else t.data_ptr() for t in (weight, bias)))
        kernel(given, result.data_ptr(), eps, *rest, *tokens[:3])
        return result

    return call


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    outs, eps = problem.outputs, float(problem["eps"])
    rest, kinds, (token, kind, _, made), of_tokens = _last(problem)
    addresses_of = types.UniTuple(I64, 3)
    signature = types.void(addresses_of, addresses_of, F64, *kinds, of_tokens[0], of_tokens[1], of_tokens[3])
    kernel = threads.team(serial_backward, parallel_backward, signature, problem["x"].numel())

    def call(grad, x, shape, weight, *_):
        results = tuple([None if out is None else out.empty() for out in outs])
        addresses = tuple([0 if t is None else t.data_ptr() for t in (*results, None)[:3]])
        given = (grad.data_ptr(), x.data_ptr(), 0 if weight is None else weight.data_ptr())
        kernel(given, addresses, eps, *rest, token, kind, made)
        return results

    return call
