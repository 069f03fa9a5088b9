"""add on the CPU: rows of an innermost run, whatever is broadcast.

Flat memory is one row. Operands of different floating types need no copy: each is widened as it is read.
"""

# mypy: ignore-errors

import functools

import numpy as np
import torch
from numba import prange, types

from nxcore.plugin import Reduction, broadcast_strides, recording
from nxcore_numba import memory, reduce, threads
from nxcore_numba.half import TOKENS, load, store, type_of

CHUNK = 16_384
PARTS = 512
"""The most parts that work is cut into."""


@threads.jit(fastmath={"contract"})
def run(out, x, y, alpha, at, steps, size, x_token, y_token, token):
    """Add one run; the loops of stride 1 and 0 are apart so that they become vector code."""
    ot, xt, yt = at
    os, xs, ys = steps
    if os == 1 and xs == 1 and ys == 1:
        for j in range(size):
            store(out, ot + j, load(x, xt + j, x_token) + alpha * load(y, yt + j, y_token), token)
    elif os == 1 and xs == 1 and ys == 0:
        term = alpha * load(y, yt, y_token)
        for j in range(size):
            store(out, ot + j, load(x, xt + j, x_token) + term, token)
    elif os == 1 and xs == 0 and ys == 1:
        term = load(x, xt, x_token)
        for j in range(size):
            store(out, ot + j, term + alpha * load(y, yt + j, y_token), token)
    else:
        for j in range(size):
            part = load(x, xt + j * xs, x_token) + alpha * load(y, yt + j * ys, y_token)
            store(out, ot + j * os, part, token)


@threads.jit
def pieces(out, x, y, alpha, dims, first, last, x_token, y_token, token):
    """Add the pieces from ``first`` to ``last``; columns of ``dims`` are sizes, out, x and y."""
    steps = dims[3, 1], dims[3, 2], dims[3, 3]
    for item in range(first, last):
        row, start, size = memory.item_of(dims, item, CHUNK)
        at = (
            memory.offset(dims, row, start, 1),
            memory.offset(dims, row, start, 2),
            memory.offset(dims, row, start, 3),
        )
        run(out, x, y, np.float32(alpha), at, steps, size, x_token, y_token, token)


@threads.jit
def serial(out, x, y, alpha, dims, x_token, y_token, token):
    """Add on one thread."""
    pieces(out, x, y, alpha, dims, 0, memory.items(dims, CHUNK), x_token, y_token, token)


@threads.jit(parallel=True)
def parallel(out, x, y, alpha, dims, x_token, y_token, token):
    """Add on all threads."""
    items = memory.items(dims, CHUNK)
    parts = min(items, PARTS)
    for p in prange(parts):
        pieces(out, x, y, alpha, dims, p * items // parts, (p + 1) * items // parts, x_token, y_token, token)


@functools.cache
def _signature(*dtypes):
    """Return the kernel's signature: to make one takes longer than the rest of a plan."""
    whole = types.int64
    return types.void(whole, whole, whole, types.float64, types.int64[:, ::1], *map(type_of, dtypes))


def compiled(out, x, y):
    """Return the kernel for these descriptions, taking ``(out, x, y, alpha)`` as addresses and a float."""
    strides = [broadcast_strides(m, out.shape) for m in (out, x, y)]
    dims = memory.table(out.shape, strides)
    metas = (x, y, out)
    kernel = threads.team(serial, parallel, _signature(*(m.dtype for m in metas)), out.numel())
    tokens = tuple(TOKENS[m.dtype] for m in metas)
    return lambda out, x, y, alpha: kernel(out, x, y, alpha, dims, *tokens)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, y, target = problem["x"], problem["y"], problem["out"]
    out = problem.outputs
    if isinstance(y, type):
        return _plan_number(out if target is None else target, x, target is None)
    kernel = compiled(out if target is None else target, x, y)
    if target is not None:

        def call_into(x, y, alpha, out):
            kernel(out.data_ptr(), x.data_ptr(), y.data_ptr(), float(alpha))
            return out

        return call_into

    def call(x, y, alpha, _out):
        result = out.empty()
        kernel(result.data_ptr(), x.data_ptr(), y.data_ptr(), float(alpha))
        return result

    return call


def _plan_number(target, x, fresh):
    """Return a callable for a number ``y``, which reads as a tensor of no dimensions."""
    one = type(x)((), (), torch.float64, x.device)
    kernel = compiled(target, x, one)

    def call(x, y, alpha, out):
        if recording():  # a repeated launch would read the number's memory after it was freed
            raise ValueError("the number lies in memory of this call alone")
        number = np.array(y, np.float64)
        result = target.empty() if fresh else out
        kernel(result.data_ptr(), x.data_ptr(), number.ctypes.data, float(alpha))
        return result

    return call


ZERO = np.zeros((), np.float32)


def _one(grad, meta, reduction):
    """Return ``undo(grad, alpha)`` for one operand."""
    if reduction:
        kernel = reduce.compiled(grad, reduction)

        def undo(grad, alpha):
            result = meta.empty()
            kernel(result.data_ptr(), grad.data_ptr(), float(alpha))
            return result

        return undo
    scaled = compiled(meta, type(meta)((), (), torch.float32, meta.device), grad)

    def view(grad_now, alpha):
        if alpha == 1:
            return grad_now.view(meta.shape)
        result = meta.empty()
        scaled(result.data_ptr(), ZERO.ctypes.data, grad_now.data_ptr(), float(alpha))
        return result

    return view


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    x_undo, y_undo = (
        _one(problem["grad"], out, reduction) if out else None
        for out, reduction in zip(problem.outputs, Reduction.of_add_backward(problem), strict=True)
    )

    def call(grad, x_size, y_size, alpha, output_mask):
        return (x_undo(grad, 1) if x_undo else None), (y_undo(grad, alpha) if y_undo else None)

    return call
