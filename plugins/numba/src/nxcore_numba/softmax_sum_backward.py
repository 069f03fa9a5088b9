"""softmax_sum_backward on the CPU: first all reading, then all writing.

A chunk of the gradient stays in the first-level cache while each candidate is multiplied with it. Writing
the candidates' gradients in the same pass would read the gradient once, and takes twice as long: memory
is slow to turn from reading to writing. Dot products are float32 within a chunk and float64 across
chunks; the parts are cut by shape alone and added up in order, so the bits don't depend on the number of
threads.
"""

# mypy: ignore-errors

import numpy as np
import torch
from numba import prange, types

from nxcore_numba import memory, threads
from nxcore_numba.dims import candidates_of
from nxcore_numba.half import FLOAT, TOKENS, load, store, store_any, type_of
from nxcore_numba.softmax_sum import GIVEN, addresses, factors, softmax
from nxcore_numba.tile import VECTOR, fence, stream

CHUNK = 8192
FOUR = 4
STREAMED = 16 * 1024 * 1024
"""Bytes of outputs from which on they are written past the caches, which couldn't hold them."""

PARTS = 512
"""The most parts that work is cut into."""


@threads.jit(fastmath={"contract", "reassoc"})
def dot(a, at, a_step, a_token, b, bt, b_step, size, token):
    """Return the sum of products of two runs of any stride."""
    total = np.float32(0)
    for j in range(size):
        total += load(a, at + j * a_step, a_token) * load(b, bt + j * b_step, token)
    return total


@threads.jit(fastmath={"contract", "reassoc"})
def dot_four(a, at, a_token, xs, i, places, size, token):
    """Return four sums of products of dense runs, in float32, in as many accumulators as vectors hold."""
    b, c, d, e = xs[i], xs[i + 1], xs[i + 2], xs[i + 3]
    bt, ct, dt, et = places
    s = t = u = v = np.float32(0)
    for j in range(size):
        g = load(a, at + j, a_token)
        s += g * load(b, bt + j, token)
        t += g * load(c, ct + j, token)
        u += g * load(d, dt + j, token)
        v += g * load(e, et + j, token)
    return s, t, u, v


@threads.jit
def scale(out, ot, o_step, a, at, a_step, weight, size, a_token, token):
    """Write ``weight`` times a run of any stride."""
    if a_step == 1 and o_step == 1:
        for j in range(size):
            store(out, ot + j, weight * load(a, at + j, a_token), token)
    else:
        for j in range(size):
            store(out, ot + j * o_step, weight * load(a, at + j * a_step, a_token), token)


@threads.jit
def scale_four(outs, i, places, a, at, weights, size, a_token, token):
    """Write four times a dense run, each with its weight."""
    b, c, d, e = outs[i], outs[i + 1], outs[i + 2], outs[i + 3]
    bt, ct, dt, et = places
    r, s = np.float32(weights[i]), np.float32(weights[i + 1])
    u, v = np.float32(weights[i + 2]), np.float32(weights[i + 3])
    for j in range(size):
        g = load(a, at + j, a_token)
        store(b, bt + j, r * g, token)
        store(c, ct + j, s * g, token)
        store(d, dt + j, u * g, token)
        store(e, et + j, v * g, token)


@threads.jit
def dense(addresses, dims, i, column):
    """Return whether four operands from ``i`` on are there and, with the gradient, of inner stride 1."""
    if i + FOUR > len(addresses) or dims[3, 1] != 1:
        return False
    for k in range(FOUR):  # noqa: SIM110  Numba compiles no generator
        if addresses[i + k] == 0 or dims[3, column + k] != 1:
            return False
    return True


@threads.jit
def places_of(dims, row, start, column):
    """Return where a piece begins in four operands."""
    a, b = memory.offset(dims, row, start, column), memory.offset(dims, row, start, column + 1)
    return a, b, memory.offset(dims, row, start, column + 2), memory.offset(dims, row, start, column + 3)


@threads.jit
def dot_pieces(grad, xs, dots, dims, first, last, grad_token, token):
    """Add the dot products of the pieces from ``first`` to ``last`` to ``dots``."""
    for item in range(first, last):
        row, start, size = memory.item_of(dims, item, CHUNK)
        gt = memory.offset(dims, row, start, 1)
        i = 0
        while i < len(xs):
            if dense(xs, dims, i, 2 + i):
                places = places_of(dims, row, start, 2 + i)
                s, t, u, v = dot_four(grad, gt, grad_token, xs, i, places, size, token)
                dots[i] += s
                dots[i + 1] += t
                dots[i + 2] += u
                dots[i + 3] += v
                i += FOUR
            else:
                xt, step = memory.offset(dims, row, start, 2 + i), dims[3, 2 + i]
                dots[i] += dot(grad, gt, dims[3, 1], grad_token, xs[i], xt, step, size, token)
                i += 1


@threads.jit
def scale_past_caches(out, ot, a, at, weight, size):
    """Write ``weight`` times a dense run of float32 to a dense one that begins on a line of the cache."""
    to, source = out + 4 * ot, a + 4 * at
    for j in range(0, size - VECTOR + 1, VECTOR):
        stream(to, source, j, weight)
    for j in range(size // VECTOR * VECTOR, size):
        store(to, j, weight * load(source, j, FLOAT), FLOAT)


@threads.jit
def on_line(out, ot):
    """Return whether a run of float32 begins on a line of the cache."""
    return (out + 4 * ot) % (4 * VECTOR) == 0


@threads.jit
def scale_pieces(grad, outs, weights, dims, first, last, grad_token, token, streamed):
    """Write the candidates' gradients in the pieces from ``first`` to ``last``."""
    count = len(outs)
    for item in range(first, last):
        row, start, size = memory.item_of(dims, item, CHUNK)
        gt = memory.offset(dims, row, start, 1)
        i = 0
        while i < count:
            column = 2 + count + i
            if streamed and dims[3, 1] == 1:
                ot, weight = memory.offset(dims, row, start, column), np.float32(weights[i])
                if outs[i] == 0:
                    pass
                elif dims[3, column] == 1 and on_line(outs[i], ot):
                    scale_past_caches(outs[i], ot, grad, gt, weight, size)
                else:
                    scale(outs[i], ot, dims[3, column], grad, gt, 1, weight, size, grad_token, token)
                i += 1
            elif dense(outs, dims, i, column):
                places = places_of(dims, row, start, column)
                scale_four(outs, i, places, grad, gt, weights, size, grad_token, token)
                i += FOUR
            else:
                if outs[i] != 0:
                    ot, weight = memory.offset(dims, row, start, column), np.float32(weights[i])
                    scale(outs[i], ot, dims[3, column], grad, gt, dims[3, 1], weight, size, grad_token, token)
                i += 1
    if streamed:
        fence()


@threads.jit
def finish(out, weights, parts, kind):
    """Add up the parts and apply the Jacobian of softmax, unless the weights were given."""
    count = len(weights)
    mean = 0.0
    for i in range(count):
        for p in range(1, len(parts)):
            parts[0, i] += parts[p, i]
        mean += weights[i] * parts[0, i]
    for i in range(count):
        if kind >= GIVEN:
            store_any(out, i, parts[0, i], kind - GIVEN)
        else:
            store_any(out, i, weights[i] * (parts[0, i] - mean), kind)


@threads.jit
def serial(grad, xs, outs, logits, stride, kind, logits_grad, dims, grad_token, token, streamed):
    """Compute on one thread; an address of 0 requests nothing."""
    weights = softmax(logits, stride, kind, len(xs))
    items = memory.items(dims, CHUNK)
    parts = min(items, PARTS)
    if logits_grad != 0:
        dots = np.zeros((parts, len(xs)), np.float64)
        for p in range(parts):
            first, last = p * items // parts, (p + 1) * items // parts
            dot_pieces(grad, xs, dots[p], dims, first, last, grad_token, token)
        finish(logits_grad, weights, dots, kind)
    if max(outs) != 0:
        for p in range(parts):
            first, last = p * items // parts, (p + 1) * items // parts
            scale_pieces(grad, outs, weights, dims, first, last, grad_token, token, streamed)


@threads.jit(parallel=True)
def parallel(grad, xs, outs, logits, stride, kind, logits_grad, dims, grad_token, token, streamed):
    """Compute on all threads; columns of ``dims`` are sizes, then strides of grad, xs and outs."""
    weights = softmax(logits, stride, kind, len(xs))
    items = memory.items(dims, CHUNK)
    parts = min(items, PARTS)
    if logits_grad != 0:
        dots = np.zeros((parts, len(xs)), np.float64)
        for p in prange(parts):
            first, last = p * items // parts, (p + 1) * items // parts
            dot_pieces(grad, xs, dots[p], dims, first, last, grad_token, token)
        finish(logits_grad, weights, dots, kind)
    if max(outs) != 0:
        for p in prange(parts):
            first, last = p * items // parts, (p + 1) * items // parts
            scale_pieces(grad, outs, weights, dims, first, last, grad_token, token, streamed)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    grad, (logits, kind) = problem["grad"], factors(problem)
    metas, step = candidates_of(problem["xs"])
    count, stacked = len(metas), step is not None
    steps = [i * step for i in range(count)] if stacked else None
    xs_out, logits_out = problem.outputs
    if not stacked:
        out_metas = xs_out
    elif xs_out is None:
        out_metas = [None] * count
    else:
        out_metas, out_step = candidates_of(xs_out)
        out_steps = [i * out_step for i in range(count)]
    # The strides of what is not requested don't count: the gradient's keep dimensions mergeable.
    columns = [m.strides if m else grad.strides for m in (grad, *metas, *out_metas)]
    dims = memory.table(grad.shape, columns)
    stride = logits.strides[0]
    grad_token, token = TOKENS[grad.dtype], TOKENS[metas[0].dtype]
    whole, many = types.int64, types.int64[::1]
    signature = types.void(
        whole, many, many, whole, whole, whole, whole, types.int64[:, ::1], type_of(grad.dtype),
        type_of(metas[0].dtype), types.boolean,
    )  # fmt: skip
    written = sum(m.nbytes for m in out_metas if m)
    streamed = written >= STREAMED and grad.dtype == metas[0].dtype == torch.float32
    run = threads.team(serial, parallel, signature, count * grad.numel())

    def call(grad, xs, logits, output_mask):
        if not stacked:
            result = tuple([m.empty() if m else None for m in out_metas])
            outs = [r.data_ptr() if m else 0 for r, m in zip(result, out_metas, strict=True)]
        elif xs_out:
            result = xs_out.empty()
            outs = addresses(result, out_steps)
        else:
            result, outs = None, [0] * count
        logits_grad = logits_out.empty() if logits_out else None
        run(
            grad.data_ptr(), np.array(addresses(xs, steps), np.int64), np.array(outs, np.int64),
            logits.data_ptr(), stride, kind, logits_grad.data_ptr() if logits_out else 0, dims,
            grad_token, token, streamed,
        )  # fmt: skip
        return result, logits_grad

    return call
