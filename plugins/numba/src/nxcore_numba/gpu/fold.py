"""amax, amin, max, min, argmax, argmin, any, all on CUDA: threads lie as for a sum, and keep what they find.

Elements are turned so that the largest is looked for: by their sign, or to whether they are, or aren't, 0.
Where there are few outputs, their terms are cut into parts, whose best a second launch compares.
"""

# mypy: ignore-errors

import math

import numpy as np
import torch

from nxcore.plugin import Reduction
from nxcore_numba.dims import KINDS
from nxcore_numba.gpu.launch import BLOCKS, THREADS, Launch, cuda
from nxcore_numba.gpu.reduce import inner

LEAST = 64
"""Terms of a part, at least, of one thread; of a block that many times its threads would be too many."""

NONE = np.int64(2**62)
"""The number of no term: after all others."""

LARGEST, SMALLEST, SOME, EVERY, FOUND = range(5)
"""The elements to find: by their size, other than 0, or 0; and the best that a launch found."""

LOOKS = {
    **dict.fromkeys(("amax", "max", "argmax"), LARGEST),
    **dict.fromkeys(("amin", "min", "argmin"), SMALLEST),
    "any": SOME,
    "all": EVERY,
}


@cuda.jit(device=True)
def turned(value, look):
    """Return a number that is the larger, the more an element is looked for; of the best, the result."""
    if look == SMALLEST:
        return -value
    if look == SOME:
        return np.float32(1) if value != np.float32(0) else np.float32(0)
    if look == EVERY:
        return np.float32(1) if value == np.float32(0) else np.float32(0)
    return value


@cuda.jit(device=True)
def comes_first(value, number, best, tap):
    """Return whether ``value`` is the better of two: NaN above all, and the first of equals."""
    if value != value:
        return best == best or number < tap
    return value > best or (value == best and number < tap)


@cuda.jit(device=True)
def place(index, sizes):
    """Return where a row-major number lies among three dimensions of (size, stride, ...)."""
    rest = index // sizes[2][0]
    at = (index % sizes[2][0]) * sizes[2][1]
    return at + (rest % sizes[1][0]) * sizes[1][1] + (rest // sizes[1][0]) * sizes[0][1]


@cuda.jit
def by_block(out, taps, x, seen, kept, results, gone, outputs, terms, parts, look, back, asked):
    """One block an output and part; ``results`` are the kept dimensions of what is written."""
    block = np.int64(cuda.blockIdx.x)
    o, p = block % outputs, block // outputs
    base = place(o, kept)
    end = (p + 1) * terms // parts
    i = p * terms // parts + cuda.threadIdx.x
    best, tap = np.float32(-math.inf), NONE
    while i < end:
        value = turned(np.float32(x[base + place(i, gone)]), look)
        if comes_first(value, i, best, tap):
            best, tap = value, i
        i += cuda.blockDim.x
    values = cuda.shared.array(THREADS, np.float32)  # on a line of its own, by which the simulator knows it
    numbers = cuda.shared.array(THREADS, np.int64)
    lane = cuda.threadIdx.x
    values[lane], numbers[lane] = best, tap
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if lane < half and comes_first(
            values[lane + half], numbers[lane + half], values[lane], numbers[lane]
        ):
            values[lane], numbers[lane] = values[lane + half], numbers[lane + half]
        half //= 2
    if lane == 0:
        at = p * outputs + place(o, results)
        if asked != ONLY_NUMBERS:
            out[at] = turned(values[0], back)
        if asked != ONLY_VALUES:
            taps[at] = numbers[0]


@cuda.jit
def by_thread(out, taps, x, seen, kept, results, gone, outputs, terms, parts, look, back, asked):
    """One thread an output and part; the numbers of terms are those in ``seen`` where these are found."""
    thread = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if thread < outputs * parts:
        o, p = thread % outputs, thread // outputs
        base = place(o, kept)
        best, tap = np.float32(-math.inf), NONE
        for i in range(p * terms // parts, (p + 1) * terms // parts):
            at = base + place(i, gone)
            value = turned(np.float32(x[at]), look)
            number = np.int64(seen[at]) if look == FOUND and asked != ONLY_VALUES else np.int64(i)
            if comes_first(value, number, best, tap):
                best, tap = value, number
        at = p * outputs + place(o, results)
        if asked != ONLY_NUMBERS:
            out[at] = turned(best, back)
        if asked != ONLY_VALUES:
            taps[at] = tap


ONLY_VALUES, ONLY_NUMBERS, BOTH = range(3)
"""The requested results."""


def compiled(problem, *, asked):
    """Return the kernel, taking ``(out, taps, x)`` as tensors; what isn't requested is ignored."""
    (reduction,) = Reduction.of_call(problem)
    kept, gone = reduction.kept, reduction.reduced
    outputs, terms, look = reduction.outputs, reduction.terms, LOOKS[problem.op]
    outer = (bool(kept) and kept[-1][1] == 1) or terms < LEAST
    kept = ((1, 0, 0),) * (KINDS - len(kept)) + kept
    gone = ((1, 0),) * (KINDS - len(gone)) + gone
    kernel, lanes = (by_thread, THREADS) if outer else (by_block, 1)
    blocks = -(-outputs // lanes)
    parts = max(1, min(BLOCKS // blocks, terms // (LEAST if outer else LEAST * THREADS)))
    first = Launch(kernel, -(-outputs * parts // lanes))
    # Parts are a tensor (parts, outputs), numbered already: the second way's own case.
    rows, second = ((1, 0), (1, 0), (parts, outputs)), Launch(by_thread, -(-outputs // THREADS))
    read = tuple((n, s) for n, s, _ in kept)
    written = tuple((n, s) for n, _, s in kept)
    between = tuple((n, inner(kept, i)) for i, (n, _, _) in enumerate(kept))

    def call(out, taps, x):
        device = x.device
        if parts == 1:
            first(device, out, taps, x, taps, read, written, gone, outputs, terms, 1, look, look, asked)
            return
        bests = torch.empty(parts * outputs, dtype=torch.float32, device=device)
        many = 1 if asked == ONLY_VALUES else parts * outputs
        numbers = torch.empty(many, dtype=torch.int64, device=device)
        both = ONLY_VALUES if asked == ONLY_VALUES else BOTH
        first(
            device, bests, numbers, x, numbers, read, between, gone, outputs, terms, parts, look, FOUND, both
        )
        second(
            *(device, out, taps, bests, numbers, between, written, rows, outputs, parts, 1, FOUND),
            *(look, asked),
        )

    return call


def plan(problem):
    """Return a callable for calls like ``problem``."""
    outputs = problem.outputs
    if isinstance(outputs, tuple):
        (out, indices), both = outputs, compiled(problem, asked=BOTH)

        def call_for_both(x, *_):
            results = out.empty(), indices.empty()
            both(*results, x)
            return results

        return call_for_both
    numbered, flags = problem.op.startswith("arg"), outputs.dtype is torch.bool
    kernel = compiled(problem, asked=ONLY_NUMBERS if numbered else ONLY_VALUES)
    # The types are fixed, and nothing is written there.
    none = torch.empty(1, dtype=torch.float32 if numbered else torch.int64, device=outputs.device)

    def call(x, *_):
        result = outputs.empty()
        if numbered:
            kernel(none, result, x)
        else:
            kernel(result.view(torch.uint8) if flags else result, none, x)
        return result

    return call
