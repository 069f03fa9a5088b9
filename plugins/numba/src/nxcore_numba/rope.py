"""rope on the CPU: a thread turns whole rows, one after the other."""

# mypy: ignore-errors

import numpy as np
from numba import prange, types

from nxcore.plugin import Turned
from nxcore_numba import threads
from nxcore_numba.half import TOKENS, load, store, type_of
from nxcore_numba.lines import PARTS, TABLE

I64 = types.int64


@threads.jit(fastmath={"contract"})
def turn(x, xs, cos, cs, sin, ss, out, to, sign, pairs, token, kind):
    """Turn the pairs of a row; each of ``x``, ``cos`` and ``sin`` is where first and second entries begin."""
    for i in range(pairs):
        one, two = load(x[0], x[1] + i * xs, token), load(x[0], x[2] + i * xs, token)
        by, other = sign * load(sin[0], sin[1] + i * ss, kind), sign * load(sin[0], sin[2] + i * ss, kind)
        first = one * load(cos[0], cos[1] + i * cs, kind) - two * by
        second = two * load(cos[0], cos[2] + i * cs, kind) + one * other
        store(out, to[0] + i * to[2], first, token)
        store(out, to[1] + i * to[2], second, token)


@threads.jit
def part(tensors, first, last, table, numbers, token, kind):
    """Turn the rows from ``first`` to ``last``; see ``plan`` for the table and the numbers."""
    x, cos, sin, out = tensors
    repeats, pairs, rest, neighbours, each, back = numbers
    step, gap = (2, 1) if neighbours else (1, pairs)
    cs, cg = (step, gap) if each else (1, 0)
    xe, ce, se = table[4, 1], table[4, 2], table[4, 3]
    sign = np.float32(-1) if back else np.float32(1)
    for line in range(first, last):
        left, again = line // repeats, line % repeats
        at, c, s, to = again * table[3, 1], np.int64(0), np.int64(0), again * table[3, 4]
        for d in range(3):
            place = left % table[d, 0]
            left //= table[d, 0]
            at += place * table[d, 1]
            c += place * table[d, 2]
            s += place * table[d, 3]
            to += place * table[d, 4]
        near, far = (s + cg * se, s) if back else (s, s + cg * se)
        of_x, of_cos, of_sin = (x, at, at + gap * xe), (cos, c, c + cg * ce), (sin, near, far)
        if step * xe == cs * ce == cs * se == 1:
            turn(of_x, 1, of_cos, 1, of_sin, 1, out, (to, to + gap, 1), sign, pairs, token, kind)
        else:
            own = (to, to + gap, step)
            turn(of_x, step * xe, of_cos, cs * ce, of_sin, cs * se, out, own, sign, pairs, token, kind)
        for i in range(2 * pairs, 2 * pairs + rest):
            store(out, to + i, load(x, at + i * xe, token), token)


@threads.jit
def serial(tensors, count, table, numbers, token, kind):
    """Do it on one thread."""
    part(tensors, 0, count, table, numbers, token, kind)


@threads.jit(parallel=True)
def parallel(tensors, count, table, numbers, token, kind):
    """Do it on all threads."""
    parts = min(count, PARTS)
    for p in prange(parts):
        part(tensors, p * count // parts, (p + 1) * count // parts, table, numbers, token, kind)


SIZES = types.UniTuple(I64, 4), types.UniTuple(I64, 6)


def plan(problem):
    """Return a callable for calls like ``problem``: of ``rope``, or of its gradient, which turns back.

    The table has a row for each dimension of rows, innermost first, of its size and the steps of ``x``,
    ``cos``, ``sin`` and the result; then the steps between rows of the same angles, and between entries.
    """
    back = int(problem.op.endswith("_backward"))
    x, cos = problem.args[0], problem["cos"]
    out = problem.outputs[0] if back else problem.outputs
    found = Turned.of(problem)
    sizes = zip(found.sizes, *found.steps, strict=True)
    rows = [*[tuple(row) for row in sizes][::-1], *[(1, 0, 0, 0, 0)] * 3][:3]
    table = np.array([*rows, (0, *found.again), (0, *found.entry)], dtype=np.int64)
    numbers = (found.repeats, found.pairs, found.rest, int(problem["interleaved"]), int(found.each), back)
    count, tokens = found.rows * found.repeats, (TOKENS[x.dtype], TOKENS[cos.dtype])
    signature = types.void(SIZES[0], I64, TABLE, SIZES[1], type_of(x.dtype), type_of(cos.dtype))
    kernel = threads.team(serial, parallel, signature, out.numel())

    def call(x, *rest):
        result = out.empty()
        given = (x, *rest[back : back + 2], result)
        kernel(tuple([t.data_ptr() for t in given]), count, table, numbers, *tokens)
        return (result, None, None) if back else result

    return call
