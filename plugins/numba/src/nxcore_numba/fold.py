"""amax, amin, max, min, argmax, argmin, any, all on the CPU: one fold, by what it starts from and looks for.

Elements are turned so that the largest is looked for: by their sign, or to whether they are, or aren't, 0.
Two ways through memory, as for a sum. Where the innermost axis falls away, an output's runs are folded
block by block; an index is looked up in a block that beats those before, which is rare, and in the cache.
Where it stays, a tile of neighbouring outputs is folded row by row, each with the number of its row. Parts
are cut by shape alone.
"""

# mypy: ignore-errors

import functools
import math

import numpy as np
from numba import prange, types
from numba.extending import intrinsic

from nxcore.plugin import Reduction
from nxcore_numba import threads
from nxcore_numba.half import FLOAT, TOKENS, load, peek, scratch, store, type_of
from nxcore_numba.reduce import BLOCK, TILE, shares, split
from nxcore_numba.tile import peek_whole, store_whole

LOWEST, NAN, ONE = np.float32(-math.inf), np.float32(math.nan), np.float32(1)
WHOLE, LONG, BYTE = np.int32(0), np.int64(0), np.uint8(0)

LARGEST, SMALLEST, SOME, EVERY = range(4)
"""The elements to find: by their size, other than 0, or 0."""

LOOKS = {
    **dict.fromkeys(("amax", "max", "argmax"), LARGEST),
    **dict.fromkeys(("amin", "min", "argmin"), SMALLEST),
    "any": SOME,
    "all": EVERY,
}


@intrinsic
def larger(typingctx, a, b):
    """Return the larger of two numbers; of NaN anything, which lets LLVM keep one for each lane."""

    def codegen(context, builder, signature, args):
        flags = ("nnan", "nsz")
        greater = builder.fcmp_ordered(">", *args, flags=flags)
        return builder.select(greater, *args, flags=flags)

    return types.float32(types.float32, types.float32), codegen


@threads.jit
def propagated(a, b):
    """Return the larger of two, NaN above all."""
    return a if (a > b) | (a != a) else b


@threads.jit
def beats(value, best):
    """Return whether an element that comes later replaces the best: the first of equals counts."""
    return (value > best) | ((value != value) & (best == best))


@intrinsic
def added(typingctx, a, b):
    """Return a sum in whatever order, which lets LLVM keep one for each lane."""

    def codegen(context, builder, signature, args):
        return builder.fadd(*args, flags=("reassoc",))

    return types.float32(types.float32, types.float32), codegen


@threads.jit
def odd(x, at, step, size, token):
    """Return whether a run has a NaN."""
    found = WHOLE
    for j in range(size):
        value = load(x, at + j * step, token)
        found |= np.int32(value != value)
    return found != 0


@threads.jit
def run(x, at, step, size, sign, token):
    """Return the largest of a run, NaN where there is one.

    The sum is NaN where an element is, and costs less than to compare each; it is also of both infinities.
    """
    top, total = LOWEST, FLOAT
    if step == 1:
        for j in range(size):
            value = load(x, at + j, token) * sign
            top, total = larger(top, value), added(total, value)
    else:
        for j in range(size):
            value = load(x, at + j * step, token) * sign
            top, total = larger(top, value), added(total, value)
    return NAN if total != total and odd(x, at, step, size, token) else top


@threads.jit
def flag(x, at, step, size, zero, token):
    """Return 1 where a run has an element that is 0, or one that isn't, else 0."""
    found = WHOLE
    if step == 1:
        for j in range(size):
            found |= np.int32((load(x, at + j, token) == FLOAT) == zero)
    else:
        for j in range(size):
            found |= np.int32((load(x, at + j * step, token) == FLOAT) == zero)
    return np.float32(found)


@threads.jit
def place(x, at, step, size, sign, top, token):
    """Return where in a run its largest lies."""
    for j in range(size):
        value = load(x, at + j * step, token) * sign
        if (value == top) | (value != value):
            return j
    return 0


@threads.jit
def runs(x, base, gone, first, last, look, numbered, token):
    """Return the best of one output's blocks from ``first`` to ``last``, and its number."""
    length, step = gone[2, 0], gone[2, 1]
    blocks = (length + BLOCK - 1) // BLOCK
    sign = np.float32(-1 if look == SMALLEST else 1)
    best, number = LOWEST, np.int64(-1)
    for i in range(first, last):
        start, index = i * BLOCK, 0
        at = base + start * step
        if last > blocks:  # several runs: divisions cost as much as a short one
            start, index = (i % blocks) * BLOCK, i // blocks
            at = base + (index % gone[1, 0]) * gone[1, 1] + (index // gone[1, 0]) * gone[0, 1] + start * step
        size = min(BLOCK, length - start)
        if look >= SOME:
            best = flag(x, at, step, size, look == EVERY, token)
            if best != FLOAT:
                break
        else:
            top = run(x, at, step, size, sign, token)
            if (number < 0) | beats(top, best):
                best, number = top, index * length + start
                if numbered:
                    number += place(x, at, step, size, sign, top, token)
    return best, number


@threads.jit
def inner_tasks(x, kept, gone, parts, values, numbers, first, last, look, numbered, token):
    """Do tasks of the first way: one is one part of one output."""
    blocks = gone[0, 0] * gone[1, 0] * ((gone[2, 0] + BLOCK - 1) // BLOCK)
    for task in range(first, last):
        p, o = (0, task) if parts == 1 else (task % parts, task // parts)
        base = split(o, kept[0], kept[1], kept[2])
        begin, end = p * blocks // parts, (p + 1) * blocks // parts
        best, number = runs(x, base, gone, begin, end, look, numbered, token)
        values[p, o] = best
        if numbered:
            numbers[p, o] = number


@threads.jit
def fold(best, x, at, size, sign, token):
    """Fold a row into the best of each lane."""
    for j in range(size):
        store(best, j, propagated(peek(best, j), load(x, at + j, token) * sign), FLOAT)


@threads.jit
def fold_eight(best, x, rows, size, sign, token):
    """Fold eight rows: a NaN is found two elements at a time."""
    a, b, c, d, e, f, g, h = rows
    for j in range(size):
        at, bt = load(x, a + j, token) * sign, load(x, b + j, token) * sign
        ct, dt = load(x, c + j, token) * sign, load(x, d + j, token) * sign
        et, ft = load(x, e + j, token) * sign, load(x, f + j, token) * sign
        gt, ht = load(x, g + j, token) * sign, load(x, h + j, token) * sign
        odd = ((at != at) | (bt != bt)) | ((ct != ct) | (dt != dt))
        odd |= ((et != et) | (ft != ft)) | ((gt != gt) | (ht != ht))
        one = larger(larger(at, bt), larger(ct, dt))
        two = larger(larger(et, ft), larger(gt, ht))
        top = NAN if odd else larger(one, two)
        store(best, j, propagated(peek(best, j), top), FLOAT)


@threads.jit
def eight(base, r, gone):
    """Return the places of eight rows."""
    return (
        base + split(r, *gone),
        base + split(r + 1, *gone),
        base + split(r + 2, *gone),
        base + split(r + 3, *gone),
        base + split(r + 4, *gone),
        base + split(r + 5, *gone),
        base + split(r + 6, *gone),
        base + split(r + 7, *gone),
    )


@threads.jit
def fold_numbered(best, taps, x, at, number, size, sign, token):
    """Fold a row, with its number."""
    for j in range(size):
        value, was = load(x, at + j, token) * sign, peek(best, j)
        wins = beats(value, was)
        store(best, j, value if wins else was, FLOAT)
        store_whole(taps, j, number if wins else peek_whole(taps, j), WHOLE)


@threads.jit
def fold_flags(best, x, at, size, zero, token):
    """Fold a row of flags."""
    for j in range(size):
        found = (load(x, at + j, token) == FLOAT) == zero
        store(best, j, ONE if found else peek(best, j), FLOAT)


@threads.jit
def fold_eight_flags(best, x, rows, size, zero, token):
    """Fold eight rows of flags."""
    a, b, c, d, e, f, g, h = rows
    if zero:
        for j in range(size):
            one = (load(x, a + j, token) == FLOAT) | (load(x, b + j, token) == FLOAT)
            two = (load(x, c + j, token) == FLOAT) | (load(x, d + j, token) == FLOAT)
            one |= (load(x, e + j, token) == FLOAT) | (load(x, f + j, token) == FLOAT)
            two |= (load(x, g + j, token) == FLOAT) | (load(x, h + j, token) == FLOAT)
            store(best, j, ONE if one | two else peek(best, j), FLOAT)
    else:
        for j in range(size):
            one = (load(x, a + j, token) != FLOAT) | (load(x, b + j, token) != FLOAT)
            two = (load(x, c + j, token) != FLOAT) | (load(x, d + j, token) != FLOAT)
            one |= (load(x, e + j, token) != FLOAT) | (load(x, f + j, token) != FLOAT)
            two |= (load(x, g + j, token) != FLOAT) | (load(x, h + j, token) != FLOAT)
            store(best, j, ONE if one | two else peek(best, j), FLOAT)


@threads.jit
def rows(x, base, gone, first, last, size, values, numbers, look, numbered, token):
    """Fold rows ``first`` to ``last`` of one tile of stride 1."""
    best, taps = scratch(TILE), scratch(TILE)
    start = FLOAT if look >= SOME else LOWEST
    for j in range(size):
        store(best, j, start, FLOAT)
    sign = np.float32(-1 if look == SMALLEST else 1)
    r = first
    if numbered:
        for j in range(size):
            store_whole(taps, j, np.int32(first), WHOLE)
        for r in range(first, last):
            fold_numbered(best, taps, x, base + split(r, *gone), np.int32(r), size, sign, token)
        for j in range(size):
            numbers[j] = peek_whole(taps, j)
    elif look >= SOME:
        while r + 8 <= last:
            fold_eight_flags(best, x, eight(base, r, gone), size, look == EVERY, token)
            r += 8
        while r < last:
            fold_flags(best, x, base + split(r, *gone), size, look == EVERY, token)
            r += 1
    else:
        while r + 8 <= last:
            fold_eight(best, x, eight(base, r, gone), size, sign, token)
            r += 8
        while r < last:
            fold(best, x, base + split(r, *gone), size, sign, token)
            r += 1
    for j in range(size):
        values[j] = peek(best, j)


@threads.jit
def outer_tasks(x, kept, gone, parts, values, numbers, first, last, look, numbered, token):
    """Do tasks of the second way: one is one part of the rows of one tile."""
    terms = gone[0, 0] * gone[1, 0] * gone[2, 0]
    width = kept[2, 0]
    tiles = (width + TILE - 1) // TILE
    axes = (gone[0], gone[1], gone[2])
    for task in range(first, last):
        p, index = task % parts, task // parts
        line, start = index // tiles, (index % tiles) * TILE
        base = start + (line % kept[1, 0]) * kept[1, 1] + (line // kept[1, 0]) * kept[0, 1]
        size, o = min(TILE, width - start), line * width + start
        begin, end = p * terms // parts, (p + 1) * terms // parts
        values_of, numbers_of = values[p, o : o + size], numbers[p, o if numbered else 0 :]
        rows(x, base, axes, begin, end, size, values_of, numbers_of, look, numbered, token)


@threads.jit
def tasks(x, kept, gone, parts, outer, values, numbers, first, last, look, numbered, token):
    """Do tasks of either way."""
    if outer:
        outer_tasks(x, kept, gone, parts, values, numbers, first, last, look, numbered, token)
    else:
        inner_tasks(x, kept, gone, parts, values, numbers, first, last, look, numbered, token)


@threads.jit
def finish(out, indices, kept, values, numbers, look, token):
    """Fold the parts in order and write the outputs; addresses of what isn't requested are 0."""
    o, sign = 0, np.float32(-1 if look == SMALLEST else 1)
    for i in range(kept[0, 0]):
        for j in range(kept[1, 0]):
            at, step = i * kept[0, 2] + j * kept[1, 2], kept[2, 2]
            for k in range(kept[2, 0]):
                best, p_best = values[0, o], 0
                for p in range(1, values.shape[0]):
                    if beats(values[p, o], best):
                        best, p_best = values[p, o], p
                if look >= SOME:
                    store_whole(out, at + k * step, np.int32((best != FLOAT) == (look == SOME)), BYTE)
                elif out != 0:
                    store(out, at + k * step, best * sign, token)
                if indices != 0:
                    store_whole(indices, at + k * step, numbers[p_best, o], LONG)
                o += 1


@threads.jit
def room(kept, parts, numbered):
    """Return memory for the best of each part, and for their numbers where they are requested."""
    outputs = kept[0, 0] * kept[1, 0] * kept[2, 0]
    numbers = np.empty((parts, outputs if numbered else 1), np.int64)
    return np.empty((parts, outputs), np.float32), numbers


@threads.jit
def serial(out, indices, x, kept, gone, parts, count, outer, look, token):
    """Fold on one thread."""
    numbered = indices != 0
    values, numbers = room(kept, parts, numbered)
    tasks(x, kept, gone, parts, outer, values, numbers, 0, count, look, numbered, token)
    finish(out, indices, kept, values, numbers, look, token)


@threads.jit(parallel=True)
def parallel(out, indices, x, kept, gone, parts, count, outer, look, token):
    """Fold on all threads: ``count`` tasks in groups, each of neighbouring tasks."""
    numbered = indices != 0
    values, numbers = room(kept, parts, numbered)
    groups = min(count, 256)
    for g in prange(groups):
        first, last = g * count // groups, (g + 1) * count // groups
        tasks(x, kept, gone, parts, outer, values, numbers, first, last, look, numbered, token)
    finish(out, indices, kept, values, numbers, look, token)


@functools.cache
def _signature(dtype):
    """Return the kernel's signature: to make one takes longer than the rest of a plan."""
    whole, grid = types.int64, types.int64[:, ::1]
    return types.void(whole, whole, whole, grid, grid, whole, whole, types.boolean, whole, type_of(dtype))


def compiled(problem):
    """Return the kernel of one problem, taking ``(out, indices, x)`` as addresses, 0 where not requested."""
    x, (reduction,) = problem["x"], Reduction.of_call(problem)
    kept, gone, parts, count, outer = shares(reduction)
    kernel = threads.team(serial, parallel, _signature(x.dtype), x.numel())
    token, look = TOKENS[x.dtype], LOOKS[problem.op]
    return lambda out, indices, x: kernel(out, indices, x, kept, gone, parts, count, outer, look, token)


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, kernel = problem.outputs, compiled(problem)
    if isinstance(out, tuple):
        values_of, indices_of = out

        def call_for_both(x, *_):
            values, indices = values_of.empty(), indices_of.empty()
            kernel(values.data_ptr(), indices.data_ptr(), x.data_ptr())
            return values, indices

        return call_for_both
    numbered = problem.op.startswith("arg")

    def call(x, *_):
        result = out.empty()
        address = result.data_ptr()
        kernel(0 if numbered else address, address if numbered else 0, x.data_ptr())
        return result

    return call
