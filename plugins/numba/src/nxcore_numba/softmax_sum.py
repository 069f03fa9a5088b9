"""softmax_sum on the CPU: one pass over memory, whatever the number of candidates.

Each task blends one chunk of all candidates in a float32 scratch that stays in the first-level cache.
"""

# mypy: ignore-errors

import functools
import math

import numpy as np
from numba import prange, types

from nxcore.plugin import alike
from nxcore_numba import memory, threads
from nxcore_numba.dims import candidates_of, factors_of
from nxcore_numba.half import FLOAT, KINDS, TOKENS, load, load_any, peek, scratch, store, type_of

CHUNK = 2048
FOUR, EIGHT = 4, 8
GIVEN = 16
"""Added to the kind if the numbers are weights, not logits."""

ZEROS = np.zeros(CHUNK, np.float32)
"""Replaces the candidates that are missing from a group of four or eight."""


@threads.jit
def softmax(logits, stride, kind, count):
    """Return the weights in float64; NaN and infinities come out as torch's do."""
    weights = np.empty(count, np.float64)
    if kind >= GIVEN:
        for i in range(count):
            weights[i] = load_any(logits, i * stride, kind - GIVEN)
        return weights
    top = -math.inf
    for i in range(count):
        weights[i] = load_any(logits, i * stride, kind)
        top = max(top, weights[i])
    total = 0.0
    for i in range(count):
        weights[i] = math.exp(weights[i] - top)
        total += weights[i]
    for i in range(count):
        weights[i] /= total
    return weights


@threads.jit
def pick(xs, weights, i, start, width):
    """Return the address and weight of candidate ``i``; past the last one, of zeros in its place.

    Zeros, not another candidate with weight 0, which would turn its infinities into NaN.
    """
    if i < len(weights):
        return xs[i], np.float32(weights[i])
    return xs[len(weights)] - start * width, FLOAT


@threads.jit(fastmath={"contract"})
def eight(target, to, xs, weights, i, start, size, width, more, token, target_token):
    """Blend candidates ``i`` to ``i + 7`` into ``target[to:]``; ``more`` adds to what is there."""
    a, r = pick(xs, weights, i, start, width)
    b, s = pick(xs, weights, i + 1, start, width)
    c, t = pick(xs, weights, i + 2, start, width)
    d, u = pick(xs, weights, i + 3, start, width)
    e, v = pick(xs, weights, i + 4, start, width)
    f, w = pick(xs, weights, i + 5, start, width)
    g, y = pick(xs, weights, i + 6, start, width)
    h, z = pick(xs, weights, i + 7, start, width)
    if more:
        for j in range(size):
            k = start + j
            part = peek(target, j) + r * load(a, k, token) + s * load(b, k, token) + t * load(c, k, token)
            part = part + u * load(d, k, token) + v * load(e, k, token) + w * load(f, k, token)
            store(target, j, part + y * load(g, k, token) + z * load(h, k, token), FLOAT)
    else:
        for j in range(size):
            k = start + j
            part = r * load(a, k, token) + s * load(b, k, token) + t * load(c, k, token)
            part = part + u * load(d, k, token) + v * load(e, k, token) + w * load(f, k, token)
            store(target, to + j, part + y * load(g, k, token) + z * load(h, k, token), target_token)


@threads.jit(fastmath={"contract"})
def four(out, xs, weights, start, size, width, token):
    """Blend up to four candidates."""
    a, r = pick(xs, weights, 0, start, width)
    b, s = pick(xs, weights, 1, start, width)
    c, t = pick(xs, weights, 2, start, width)
    d, u = pick(xs, weights, 3, start, width)
    for j in range(size):
        k = start + j
        part = r * load(a, k, token) + s * load(b, k, token)
        store(out, k, part + t * load(c, k, token) + u * load(d, k, token), token)


@threads.jit
def blend(out, xs, weights, start, size, width, token):
    """Blend ``size`` elements from ``start`` on, at most a chunk of them.

    Sums stay in registers for up to eight candidates: a scratch for them, even in the first-level cache,
    costs half as much again.
    """
    count = len(weights)
    if count <= FOUR:
        four(out, xs, weights, start, size, width, token)
    elif count <= EIGHT:
        eight(out, start, xs, weights, 0, start, size, width, False, token, token)
    else:
        acc = scratch(CHUNK)
        eight(acc, 0, xs, weights, 0, start, size, width, False, token, FLOAT)
        for i in range(EIGHT, count, EIGHT):
            eight(acc, 0, xs, weights, i, start, size, width, True, token, FLOAT)
        for j in range(size):
            store(out, start + j, peek(acc, j), token)


@threads.jit
def flat(out, xs, logits, stride, kind, size, width, token):
    """Blend flat memory on one thread; the last of ``xs`` is the address of zeros."""
    weights = softmax(logits, stride, kind, len(xs) - 1)
    for start in range(0, size, CHUNK):
        blend(out, xs, weights, start, min(CHUNK, size - start), width, token)


@threads.jit(parallel=True)
def flat_parallel(out, xs, logits, stride, kind, size, width, token):
    """Blend flat memory on all threads."""
    weights = softmax(logits, stride, kind, len(xs) - 1)
    for c in prange((size + CHUNK - 1) // CHUNK):
        blend(out, xs, weights, c * CHUNK, min(CHUNK, size - c * CHUNK), width, token)


@threads.jit(fastmath={"contract"})
def blend_strided(out, xs, weights, dims, item, token):
    """Blend one chunk of one row of the innermost dimension."""
    acc = scratch(CHUNK)
    row, start, size = memory.item_of(dims, item, CHUNK)
    for j in range(size):
        store(acc, j, FLOAT, FLOAT)
    for i in range(len(weights)):
        a, u, step = xs[i], np.float32(weights[i]), dims[-1, 2 + i]
        first = memory.offset(dims, row, start, 2 + i)
        for j in range(size):
            store(acc, j, peek(acc, j) + u * load(a, first + j * step, token), FLOAT)
    first, step = memory.offset(dims, row, start, 1), dims[-1, 1]
    for j in range(size):
        store(out, first + j * step, peek(acc, j), token)


@threads.jit
def strided(out, xs, logits, stride, kind, dims, width, token):
    """Blend strided memory on one thread.

    Columns of ``dims``: sizes, then strides of out and xs; ``width`` goes unused.
    """
    weights = softmax(logits, stride, kind, len(xs) - 1)
    for item in range(memory.items(dims, CHUNK)):
        blend_strided(out, xs, weights, dims, item, token)


@threads.jit(parallel=True)
def strided_parallel(out, xs, logits, stride, kind, dims, width, token):
    """Blend strided memory on all threads."""
    weights = softmax(logits, stride, kind, len(xs) - 1)
    for item in prange(memory.items(dims, CHUNK)):
        blend_strided(out, xs, weights, dims, item, token)


def addresses(xs, steps):
    """Return the candidates' addresses; ``steps`` holds their distances in bytes in one stacked tensor."""
    if steps is None:
        return [x.data_ptr() for x in xs]
    first = xs.data_ptr()
    return [first + step for step in steps]


def factors(problem):
    """Return the logits or the weights, and their kind."""
    found, softmax = factors_of(problem)
    return found, KINDS[found.dtype] + (0 if softmax else GIVEN)


@functools.cache
def _signature(ndim, dtype):
    """Return the signature of a kernel whose extent is a number or, of two dimensions, a table."""
    whole = types.int64
    where = types.int64[:, ::1] if ndim else whole
    return types.void(whole, types.int64[::1], whole, whole, whole, where, whole, type_of(dtype))


def plan(problem):
    """Return a callable for calls like ``problem``."""
    (logits, kind), out = factors(problem), problem.outputs
    metas, step = candidates_of(problem["xs"])
    steps = None if step is None else [i * step for i in range(len(metas))]
    stride, token = logits.strides[0], TOKENS[out.dtype]
    if alike(out, *metas):
        ndim, kernels, extent = 0, (flat, flat_parallel), out.numel()
    else:
        ndim, kernels = 2, (strided, strided_parallel)
        extent = memory.table(out.shape, [m.strides for m in (out, *metas)])
    run = threads.team(*kernels, _signature(ndim, out.dtype), len(metas) * out.numel())
    width, zeros = out.element_size(), ZEROS.ctypes.data

    def call(xs, logits):
        result = out.empty()
        pointers = np.array([*addresses(xs, steps), zeros], np.int64)
        run(result.data_ptr(), pointers, logits.data_ptr(), stride, kind, extent, width, token)
        return result

    return call
