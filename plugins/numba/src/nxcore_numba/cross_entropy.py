"""cross_entropy on the CPU: a thread has whole lines, of which the loss stores nothing."""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore.plugin import Lines
from nxcore_numba import threads
from nxcore_numba.functions import exp
from nxcore_numba.half import TOKENS, load, peek, store, type_of
from nxcore_numba.lines import PARTS, RUN, TABLE, largest, start, table_of, whole
from nxcore_numba.softmaxes import powers, scaled

I64, F64 = types.int64, types.float64
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


@threads.jit(fastmath={"contract", "reassoc"})
def summed(x, at, step, size, top, token):
    """Return the sum of the exponentials of distances from ``top``."""
    total = np.float32(0)
    if step == 1:
        for i in range(size):
            total += exp(load(x, at + i, token) - top)
    else:
        for i in range(size):
            total += exp(load(x, at + i * step, token) - top)
    return total


@threads.jit(fastmath={"contract", "reassoc"})
def leaning(x, at, step, weight, first, size, top, token):
    """Return the sum of distances from ``top``, times the weights of their classes."""
    total = np.float32(0)
    if weight == 0:
        for i in range(size):
            total += load(x, at + i * step, token) - top
    else:
        for i in range(size):
            total += load(weight, first + i, token) * (load(x, at + i * step, token) - top)
    return total


@threads.jit(fastmath={"contract"})
def levelled(y, to, gap, room, weight, size, slope, each, token):
    """Write exponentials as weights, less what every class has."""
    for i in range(size):
        factor = load(weight, i, token) if weight != 0 else np.float32(1)
        store(y, to + i * gap, peek(room, i) * slope - each * factor, token)


@threads.jit
def weights_of(weight, length, smoothing, token):
    """Return the sum of the weights of all classes, which smoothing needs."""
    if weight == 0 or smoothing == 0.0:
        return np.float64(length)
    total = 0.0
    for i in range(length):
        total += np.float64(load(weight, i, token))
    return total


@threads.jit
def own(weight, t, token):
    """Return the weight of a class."""
    return np.float64(load(weight, t, token)) if weight != 0 else 1.0


@threads.jit
def part(x, target, weight, out, how, every, first, last, inner, length, table, token):
    """Return the losses' sum, the weights' and the number of targets that there aren't, from ``first`` on."""
    reduction, ignored, smoothing = how
    losses, weights, wrong = 0.0, 0.0, 0
    step = table[0, 2]
    for line in range(first, last):
        t = whole(target, start(table, 1, line, inner))
        loss = 0.0
        if t != ignored and (t < 0 or t >= length):
            wrong += 1
        elif t != ignored:
            at = start(table, 0, line, inner)
            top = largest(x, at, step, length, token)
            total, lean = 0.0, 0.0
            for i in range(0, length, RUN):
                total += np.float64(summed(x, at + i * step, step, min(RUN, length - i), top, token))
            level = np.log(total)
            factor = own(weight, t, token)
            loss = (1.0 - smoothing) * factor * (level - np.float64(load(x, at + t * step, token) - top))
            if smoothing != 0.0:
                for i in range(0, length, RUN):
                    size = min(RUN, length - i)
                    lean += np.float64(leaning(x, at + i * step, step, weight, i, size, top, token))
                loss += smoothing / length * (every * level - lean)
            losses += loss
            weights += factor
        if reduction == 0:
            store(out, start(table, 2, line, inner), np.float32(loss), token)
    return losses, weights, wrong


@threads.jit
def finished(shares, out, reduction, token):
    """Write the loss of all parts, in their order; return the number of targets that there aren't."""
    losses, weights, wrong = 0.0, 0.0, 0
    for p in range(shares.shape[0]):
        losses += shares[p, 0]
        weights += shares[p, 1]
        wrong += np.int64(shares[p, 2])
    if reduction != 0:
        store(out, 0, np.float32(losses / weights if reduction == 1 else losses), token)
    return wrong


@threads.jit
def serial(x, target, weight, out, how, count, inner, length, table, token):
    """Do it on one thread."""
    parts = min(count, PARTS)
    shares, every = np.empty((parts, 3)), weights_of(weight, length, how[2], token)
    for p in range(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        losses, weights, wrong = part(
            x, target, weight, out, how, every, first, last, inner, length, table, token
        )
        shares[p, 0], shares[p, 1], shares[p, 2] = losses, weights, wrong
    return finished(shares, out, how[0], token)


@threads.jit(parallel=True)
def parallel(x, target, weight, out, how, count, inner, length, table, token):
    """Do it on all threads."""
    parts = min(count, PARTS)
    shares, every = np.empty((parts, 3)), weights_of(weight, length, how[2], token)
    for p in prange(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        losses, weights, wrong = part(
            x, target, weight, out, how, every, first, last, inner, length, table, token
        )
        shares[p, 0], shares[p, 1], shares[p, 2] = losses, weights, wrong
    return finished(shares, out, how[0], token)


@threads.jit
def part_backward(given, out, how, every, share, first, last, inner, length, table, token):
    """Write the gradients of the lines from ``first`` on; return how many targets there aren't."""
    x, target, weight, grad = given
    _, ignored, smoothing = how
    room = np.empty(length, np.float32)
    address, wrong, step, gap = room.ctypes.data, 0, table[0, 2], table[3, 2]
    for line in range(first, last):
        t = whole(target, start(table, 1, line, inner))
        if t != ignored and (t < 0 or t >= length):
            wrong += 1
            continue
        at, to = start(table, 0, line, inner), start(table, 3, line, inner)
        top = largest(x, at, step, length, token)
        total = 0.0
        for i in range(0, length, RUN):
            size = min(RUN, length - i)
            total += np.float64(powers(x, at + i * step, step, size, top, address, i, token))
        lead, each = 0.0, 0.0
        if t != ignored:
            factor = np.float64(load(grad, start(table, 2, line, inner), token)) / share
            lead = (1.0 - smoothing) * own(weight, t, token) * factor
            if smoothing != 0.0:
                each = smoothing / length * factor
        slope, rest = np.float32((lead + each * every) / total), np.float32(each)
        if smoothing != 0.0:
            levelled(out, to, gap, address, weight, length, slope, rest, token)
        else:
            scaled(out, to, gap, address, length, slope, token)
        if t != ignored:
            of_class = np.float32(np.float64(peek(address, t)) * slope - lead)
            if smoothing != 0.0:
                of_class -= rest * np.float32(own(weight, t, token))
            store(out, to + t * gap, of_class, token)
    return wrong


@threads.jit
def weighed(target, weight, ignored, first, last, inner, length, table, token):
    """Return the sum of the weights of lines' classes."""
    total = 0.0
    for line in range(first, last):
        t = whole(target, start(table, 1, line, inner))
        if t != ignored and t >= 0 and t < length:
            total += own(weight, t, token)
    return total


@threads.jit
def serial_backward(given, out, how, count, inner, length, table, token):
    """Do it on one thread."""
    parts = min(count, PARTS)
    shares, every = np.ones(parts), weights_of(given[2], length, how[2], token)
    if how[0] == 1:
        for p in range(parts):
            first, last = p * count // parts, (p + 1) * count // parts
            shares[p] = weighed(given[1], given[2], how[1], first, last, inner, length, table, token)
    share, wrong = in_order(shares) if how[0] == 1 else 1.0, 0
    for p in range(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        wrong += part_backward(given, out, how, every, share, first, last, inner, length, table, token)
    return wrong


@threads.jit(parallel=True)
def parallel_backward(given, out, how, count, inner, length, table, token):
    """Do it on all threads."""
    parts = min(count, PARTS)
    shares, every = np.ones(parts), weights_of(given[2], length, how[2], token)
    if how[0] == 1:
        for p in prange(parts):
            first, last = p * count // parts, (p + 1) * count // parts
            shares[p] = weighed(given[1], given[2], how[1], first, last, inner, length, table, token)
    share, wrong = in_order(shares) if how[0] == 1 else 1.0, 0
    for p in prange(parts):
        first, last = p * count // parts, (p + 1) * count // parts
        wrong += part_backward(given, out, how, every, share, first, last, inner, length, table, token)
    return wrong


@threads.jit
def in_order(shares):
    """Return the sum of all parts' shares, in their order."""
    total = 0.0
    for p in range(shares.shape[0]):
        total += shares[p]
    return total


def _lines(problem):
    """Return the settings, sizes, table and token of a call, and the types of these."""
    found, dtype = Lines.classes(problem), problem["input"].dtype
    how = (
        REDUCTIONS[problem["reduction"]],
        problem["ignore_index"],
        float(problem["label_smoothing"]),
    )
    rest = (how, found.count, found.inner, found.length, table_of(found), TOKENS[dtype])
    return rest, (types.Tuple((I64, I64, F64)), I64, I64, I64, TABLE, type_of(dtype))


def _require(wrong):
    """Raise torch's error where there were targets that there aren't: torch then says which."""
    if wrong:
        raise IndexError(f"{wrong} targets are out of bounds")


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out = problem.outputs
    rest, kinds = _lines(problem)
    kernel = threads.team(serial, parallel, I64(I64, I64, I64, I64, *kinds), problem["input"].numel())

    def call(x, target, weight, *_):
        result = out.empty()
        factors = 0 if weight is None else weight.data_ptr()
        _require(kernel(x.data_ptr(), target.data_ptr(), factors, result.data_ptr(), *rest))
        return result

    return call


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    out = problem.outputs[0]
    rest, kinds = _lines(problem)
    signature = I64(types.UniTuple(I64, 4), I64, *kinds)
    kernel = threads.team(serial_backward, parallel_backward, signature, out.numel())

    def call(grad, x, target, weight, *_):
        result = out.empty()
        factors = 0 if weight is None else weight.data_ptr()
        given = (x.data_ptr(), target.data_ptr(), factors, grad.data_ptr())
        _require(kernel(given, result.data_ptr(), *rest))
        return result, None, None

    return call
