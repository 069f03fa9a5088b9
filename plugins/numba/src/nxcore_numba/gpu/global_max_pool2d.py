"""global_max_pool2d on CUDA: one way for channels that lie closest in memory, one for pixels that do.

Where there are few channels, planes are cut into parts, whose best a second launch compares. Where offsets
are requested, each best carries its pixel's number.
"""

# mypy: ignore-errors

import math

import numpy as np
import torch

from nxcore.plugin import Reduction
from nxcore_numba.gpu.image import at, extent, place, planes
from nxcore_numba.gpu.launch import BLOCKS, THREADS, Launch, blocks_for, cuda

LEAST = 64
"""Pixels of a part, at least, of one thread; of a block that many times its threads would be too many."""

NONE = np.int64(2**62)
"""The number of no pixel: after all others."""


@cuda.jit(device=True)
def comes_first(value, number, best, tap):
    """Return whether ``value`` is the maximum of two: the larger, the first of equals, the last NaN."""
    if value != value:
        return best == best or number > tap
    return value > best or (value == best and number < tap)


@cuda.jit
def by_block(out, taps, x, seen, kept, gone, outputs, terms, parts, asked):
    """One block an output and part; dimensions are (size, stride in x, stride of out), outermost first."""
    block = np.int64(cuda.blockIdx.x)
    o, p = block % outputs, block // outputs
    k1, k0 = o % kept[1][0], o // kept[1][0]
    base = k0 * kept[0][1] + k1 * kept[1][1]
    end = (p + 1) * terms // parts
    i = p * terms // parts + cuda.threadIdx.x
    best, tap = np.float32(-math.inf), i if i < end else NONE
    while i < end:
        value = np.float32(x[base + i // gone[1][0] * gone[0][1] + i % gone[1][0] * gone[1][1]])
        if value > best or value != value:
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
        place = p * outputs + k0 * kept[0][2] + k1 * kept[1][2]
        out[place] = values[0]
        if asked:
            taps[place] = numbers[0]


@cuda.jit
def by_thread(out, taps, x, seen, kept, gone, outputs, terms, parts, asked):
    """One thread an output and part; what ``seen`` holds are the numbers, if it is as long as ``x``."""
    thread = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if thread < outputs * parts:
        o, p = thread % outputs, thread // outputs
        k1, k0 = o % kept[1][0], o // kept[1][0]
        base = k0 * kept[0][1] + k1 * kept[1][1]
        best, tap = np.float32(-math.inf), NONE
        for i in range(p * terms // parts, (p + 1) * terms // parts):
            at = base + i // gone[1][0] * gone[0][1] + i % gone[1][0] * gone[1][1]
            value = np.float32(x[at])
            number = np.int64(seen[at]) if asked == AGAIN else i
            if comes_first(value, number, best, tap):
                best, tap = value, number
        place = p * outputs + k0 * kept[0][2] + k1 * kept[1][2]
        out[place] = best
        if asked:
            taps[place] = tap


NOTHING, ASKED, AGAIN = range(3)
"""Whether pixels' numbers are requested, and those of an earlier launch are to be read."""


def compiled(problem, *, asked):
    """Return the kernel, taking ``(out, taps, x)`` as tensors; ``taps`` are ignored if not requested."""
    reduction = Reduction.of_planes(problem)
    outer = bool(reduction.kept) and reduction.kept[-1][1] == 1
    kept = ((1, 0, 0),) * (2 - len(reduction.kept)) + reduction.kept
    gone = ((1, 0),) * (2 - len(reduction.reduced)) + reduction.reduced
    outputs, terms = reduction.outputs, reduction.terms
    outer = outer or terms < LEAST
    kernel, lanes = (by_thread, THREADS) if outer else (by_block, 1)
    blocks = -(-outputs // lanes)
    parts = max(1, min(BLOCKS // blocks, terms // (LEAST if outer else LEAST * THREADS)))
    first = Launch(kernel, -(-outputs * parts // lanes))
    # Parts are an image of (parts, outputs), numbered already: the second way's own case.
    rows, second = ((1, 0), (parts, outputs)), Launch(by_thread, -(-outputs // THREADS))
    between = tuple((n, s, (kept[1][0], 1)[i]) for i, (n, s, _) in enumerate(kept))
    columns = tuple((n, (kept[1][0], 1)[i], o) for i, (n, _, o) in enumerate(kept))
    again = AGAIN if asked else NOTHING

    def call(out, taps, x):
        if parts == 1:
            first(x.device, out, taps, x, taps, kept, gone, outputs, terms, 1, asked)
            return
        bests = torch.empty(parts * outputs, dtype=torch.float32, device=x.device)
        numbers = torch.empty(parts * outputs if asked else 1, dtype=torch.int32, device=x.device)
        first(x.device, bests, numbers, x, numbers, between, gone, outputs, terms, parts, asked)
        second(x.device, out, taps, bests, numbers, columns, rows, outputs, parts, 1, again)

    return call


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out, kernel = problem.outputs, compiled(problem, asked=NOTHING)
    # Its type is fixed and nothing is written there.
    none = torch.empty(1, dtype=torch.int32, device=out.device)

    def call(x):
        result = out.empty()
        kernel(result, none, x)
        return result

    return call


def plan_with_offsets(problem):
    """Return a callable for calls like ``problem``."""
    (out, offsets), kernel = problem.outputs, compiled(problem, asked=ASKED)

    def call(x):
        result, taps = out.empty(), offsets.empty()
        kernel(result, taps, x)
        return result, taps

    return call


@cuda.jit
def spread(out, grad, offsets, walk, grads, taps, outs):
    """Write the channel's gradient where its maximum lies, and zeros elsewhere."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, y, x = place(i, walk)
        share = np.float32(0)
        if offsets[at(n, c, 0, 0, taps)] == y * walk[3] + x:
            share = np.float32(grad[at(n, c, 0, 0, grads)])
        out[at(n, c, y, x, outs)] = share
        i += step


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    launch, device = Launch(spread, blocks_for(out.numel())), out.device
    rest = extent(out), planes(grad), planes(offsets), planes(out)

    def call(grad, offsets, *size):
        result = out.empty()
        launch(device, result, grad, offsets, *rest)
        return result

    return call
