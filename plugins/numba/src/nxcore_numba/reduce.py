"""Sums over axes on the CPU, for the operators that need one: what they share.

Two ways through memory. Where the innermost axis falls away, each output adds up runs. Where it stays, a
tile of neighbouring outputs adds up rows, so that both reading and adding are vector code. Blocks are
float32, what adds up blocks is float64, and parts are cut by shape alone and added in order: the bits
don't depend on the number of threads.
"""

# mypy: ignore-errors

import functools

import numpy as np
from numba import prange, types

from nxcore_numba import threads
from nxcore_numba.dims import KINDS
from nxcore_numba.half import FLOAT, TOKENS, load, peek, scratch, store, type_of

BLOCK = 2048
"""Elements of a run added up in float32, in as many accumulators as vectors hold."""

TILE = 1024
"""Neighbouring outputs that share a pass over the rows."""

ROWS = 64
"""Rows added up in float32, eight at a time."""

PARTS = 64
"""The most parts that one output's terms are cut into."""


@threads.jit
def split(index, a, b, c):
    """Return the offset of a flat ``index`` into three dimensions, rows of (size, stride, ...)."""
    if index < c[0]:  # the one dimension there often is: three divisions cost as much as a short run
        return index * c[1]
    place = (index % c[0]) * c[1]
    index //= c[0]
    return place + (index % b[0]) * b[1] + (index // b[0]) * a[1]


@threads.jit(fastmath={"contract", "reassoc"})
def run(x, at, step, size, token):
    """Return the sum of one run of at most a block."""
    total = np.float32(0)
    if step == 1:
        for j in range(size):
            total += load(x, at + j, token)
    else:
        for j in range(size):
            total += load(x, at + j * step, token)
    return total


@threads.jit
def run_part(x, base, gone, first, last, token):
    """Return the sum of one output's runs from ``first`` to ``last``."""
    length, step = gone[2, 0], gone[2, 1]
    if last == 1 and length <= BLOCK:
        return np.float64(run(x, base, step, length, token))
    blocks = (length + BLOCK - 1) // BLOCK
    total = 0.0
    for i in range(first, last):
        start = (i % blocks) * BLOCK
        index = i // blocks
        at = base + (index % gone[1, 0]) * gone[1, 1] + (index // gone[1, 0]) * gone[0, 1] + start * step
        total += run(x, at, step, min(BLOCK, length - start), token)
    return total


@threads.jit
def inner_tasks(x, kept, gone, parts, sums, first, last, token):
    """Do tasks of the first way: one is one part of one output."""
    runs = gone[0, 0] * gone[1, 0] * ((gone[2, 0] + BLOCK - 1) // BLOCK)
    for task in range(first, last):
        p, o = (0, task) if parts == 1 else (task % parts, task // parts)
        base = split(o, kept[0], kept[1], kept[2])
        sums[p, o] = run_part(x, base, gone, p * runs // parts, (p + 1) * runs // parts, token)


@threads.jit(fastmath={"contract"})
def rows(x, base, gone, first, last, size, sums, token):
    """Add rows ``first`` to ``last`` of one tile of stride 1 to ``sums``."""
    acc = scratch(TILE)
    for j in range(size):
        sums[j] = 0
    for block in range(first, last, ROWS):
        for j in range(size):
            store(acc, j, FLOAT, FLOAT)
        end = min(block + ROWS, last)
        r = block
        while r + 8 <= end:
            a, b = base + split(r, *gone), base + split(r + 1, *gone)
            c, d = base + split(r + 2, *gone), base + split(r + 3, *gone)
            e, f = base + split(r + 4, *gone), base + split(r + 5, *gone)
            g, h = base + split(r + 6, *gone), base + split(r + 7, *gone)
            for j in range(size):
                one = (load(x, a + j, token) + load(x, b + j, token)) + load(x, c + j, token)
                two = (load(x, d + j, token) + load(x, e + j, token)) + load(x, f + j, token)
                one = (one + load(x, g + j, token)) + (two + load(x, h + j, token))
                store(acc, j, peek(acc, j) + one, FLOAT)
            r += 8
        while r < end:
            a = base + split(r, *gone)
            for j in range(size):
                store(acc, j, peek(acc, j) + load(x, a + j, token), FLOAT)
            r += 1
        for j in range(size):
            sums[j] += np.float64(peek(acc, j))


@threads.jit
def outer_tasks(x, kept, gone, parts, sums, first, last, token):
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
        rows(x, base, axes, p * terms // parts, (p + 1) * terms // parts, size, sums[p, o : o + size], token)


@threads.jit
def tasks(x, kept, gone, parts, outer, sums, first, last, token):
    """Do tasks of either way."""
    if outer:
        outer_tasks(x, kept, gone, parts, sums, first, last, token)
    else:
        inner_tasks(x, kept, gone, parts, sums, first, last, token)


@threads.jit
def finish(out, kept, scale, sums, token):
    """Add up the parts in order and write the outputs."""
    o = 0
    for i in range(kept[0, 0]):
        for j in range(kept[1, 0]):
            place, step = i * kept[0, 2] + j * kept[1, 2], kept[2, 2]
            for k in range(kept[2, 0]):
                total = sums[0, o]
                for p in range(1, sums.shape[0]):
                    total += sums[p, o]
                store(out, place + k * step, np.float32(total * scale), token)
                o += 1


@threads.jit
def serial(out, x, kept, gone, parts, count, outer, scale, token):
    """Sum on one thread."""
    sums = np.empty((parts, kept[0, 0] * kept[1, 0] * kept[2, 0]), np.float64)
    tasks(x, kept, gone, parts, outer, sums, 0, count, token)
    finish(out, kept, scale, sums, token)


@threads.jit(parallel=True)
def parallel(out, x, kept, gone, parts, count, outer, scale, token):
    """Sum on all threads: ``count`` tasks in groups, each of neighbouring tasks."""
    sums = np.empty((parts, kept[0, 0] * kept[1, 0] * kept[2, 0]), np.float64)
    groups = min(count, 256)
    for g in prange(groups):
        tasks(x, kept, gone, parts, outer, sums, g * count // groups, (g + 1) * count // groups, token)
    finish(out, kept, scale, sums, token)


@functools.cache
def _signature(dtype):
    """Return the kernel's signature: to make one takes longer than the rest of a plan."""
    whole, grid = types.int64, types.int64[:, ::1]
    return types.void(whole, whole, grid, grid, whole, whole, types.boolean, types.float64, type_of(dtype))


def shares(reduction):
    """Return how a reduction is shared out.

    Parameters
    ----------
    reduction : Reduction
        At most ``KINDS`` dimensions of either kind.

    Returns
    -------
    kept, gone : array of int64
        The dimensions that stay, rows of (size, stride, stride of the result), and those that fall away, rows
        of (size, stride); the innermost last.
    parts : int
        The parts that one output's terms are cut into.
    count : int
        The pieces of work: runs or tiles, times ``parts``.
    outer : bool
        Whether the innermost axis stays.
    """
    kept, gone = list(reduction.kept), list(reduction.reduced)
    outer = bool(kept) and kept[-1][1] == 1
    kept = np.array([(1, 0, 0)] * (KINDS - len(kept)) + kept, np.int64)
    gone = np.array([(1, 0)] * (KINDS - len(gone)) + gone, np.int64)
    if outer:
        tiles = reduction.outputs // int(kept[2, 0]) * -(-int(kept[2, 0]) // TILE)
        least, pieces = ROWS, reduction.terms
    else:
        tiles, least = reduction.outputs, 4
        pieces = reduction.terms // int(gone[2, 0]) * -(-int(gone[2, 0]) // BLOCK)
    # Parts only where outputs are too few to share out, and never so many that one has nothing to do.
    parts = max(1, min(PARTS // tiles, pieces // least)) if tiles < PARTS else 1
    return kept, gone, parts, tiles * parts, outer


def compiled(x, reduction):
    """Return the kernel of one reduction, taking ``(out, x, scale)`` as two addresses and a float.

    Parameters
    ----------
    x : TensorMeta
        What is added up.
    reduction : Reduction
        How; at most ``KINDS`` dimensions of either kind.
    """
    kept, gone, parts, count, outer = shares(reduction)
    kernel = threads.team(serial, parallel, _signature(x.dtype), x.numel())
    token = TOKENS[x.dtype]
    return lambda out, x, scale: kernel(out, x, kept, gone, parts, count, outer, scale, token)
