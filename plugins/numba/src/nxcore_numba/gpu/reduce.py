"""Sums over axes on CUDA, for the operators that need one: what they share.

Where the innermost axis falls away, a block adds up one output; where it stays, a thread does, so that
neighbours read neighbours, and so it is where a block would have more threads than terms. Either way long
sums are cut into parts, which a second launch adds up in order.
"""

# mypy: ignore-errors

import numpy as np
import torch

from nxcore_numba.dims import KINDS
from nxcore_numba.gpu.launch import BLOCKS, THREADS, Launch, cuda

FLUSH = 64
"""Terms that a thread adds up in float32 before it goes over to float64."""

PART = 4096
"""Terms of an output below which a block's threads aren't worth dividing further."""


@cuda.jit
def by_block(target, x, kept, gone, outputs, terms, parts, last, scale):
    """One block an output and part; dimensions are (size, stride in x, stride of out), outermost first."""
    block = np.int64(cuda.blockIdx.x)
    o, p = block % outputs, block // outputs
    k2, rest = o % kept[2][0], o // kept[2][0]
    k1, k0 = rest % kept[1][0], rest // kept[1][0]
    base = k0 * kept[0][1] + k1 * kept[1][1] + k2 * kept[2][1]
    place = k0 * kept[0][2] + k1 * kept[1][2] + k2 * kept[2][2]
    end = (p + 1) * terms // parts
    i = p * terms // parts + cuda.threadIdx.x
    total, part, steps = np.float64(0), np.float32(0), 0
    while i < end:
        r2, rest = i % gone[2][0], i // gone[2][0]
        r1, r0 = rest % gone[1][0], rest // gone[1][0]
        part += np.float32(x[base + r0 * gone[0][1] + r1 * gone[1][1] + r2 * gone[2][1]])
        steps += 1
        if steps % FLUSH == 0:
            total += np.float64(part)
            part = np.float32(0)
        i += cuda.blockDim.x
    sums = cuda.shared.array(THREADS, np.float64)
    lane = cuda.threadIdx.x
    sums[lane] = total + np.float64(part)
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if lane < half:
            sums[lane] += sums[lane + half]
        half //= 2
    if lane == 0:
        if last:
            target[place] = np.float32(sums[0] * scale)
        else:
            target[block] = np.float32(sums[0])


@cuda.jit
def by_thread(target, x, kept, gone, outputs, terms, parts, last, scale):
    """One thread an output and part."""
    thread = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if thread < outputs * parts:
        o, p = thread % outputs, thread // outputs
        k2, rest = o % kept[2][0], o // kept[2][0]
        k1, k0 = rest % kept[1][0], rest // kept[1][0]
        base = k0 * kept[0][1] + k1 * kept[1][1] + k2 * kept[2][1]
        place = k0 * kept[0][2] + k1 * kept[1][2] + k2 * kept[2][2]
        total, part = np.float64(0), np.float32(0)
        start = p * terms // parts
        for i in range(start, (p + 1) * terms // parts):
            r2, rest = i % gone[2][0], i // gone[2][0]
            r1, r0 = rest % gone[1][0], rest // gone[1][0]
            part += np.float32(x[base + r0 * gone[0][1] + r1 * gone[1][1] + r2 * gone[2][1]])
            if (i - start) % FLUSH == FLUSH - 1:
                total += np.float64(part)
                part = np.float32(0)
        total += np.float64(part)
        if last:
            target[place] = np.float32(total * scale)
        else:
            target[thread] = np.float32(total)


def compiled(x, reduction):
    """Return the kernel of one reduction, taking ``(out, x, scale)`` as two tensors and a float.

    Parameters
    ----------
    x : TensorMeta
        What is added up.
    reduction : Reduction
        How; at most ``KINDS`` dimensions of either kind.
    """
    kept, gone = reduction.kept, reduction.reduced
    outer = (bool(kept) and kept[-1][1] == 1) or reduction.terms < FLUSH
    kept = ((1, 0, 0),) * (KINDS - len(kept)) + kept
    gone = ((1, 0),) * (KINDS - len(gone)) + gone
    outputs, terms = reduction.outputs, reduction.terms
    if outer:
        kernel, least, lanes = by_thread, FLUSH, THREADS
    else:
        kernel, least, lanes = by_block, PART, 1
    blocks = -(-outputs // lanes)
    parts = max(1, min(BLOCKS // blocks, terms // least))
    first = Launch(kernel, -(-outputs * parts // lanes))
    # The parts are a tensor (parts, outputs), which is the second way's own case.
    columns = tuple((n, inner(kept, i), o) for i, (n, _, o) in enumerate(kept))
    rows = ((1, 0), (1, 0), (parts, outputs))
    second = Launch(by_thread, -(-outputs // THREADS))
    device = x.device

    def call(out, x, scale):
        if parts == 1:
            first(device, out, x, kept, gone, outputs, terms, 1, True, np.float64(scale))
            return
        sums = torch.empty(parts * outputs, dtype=torch.float32, device=device)
        first(device, sums, x, kept, gone, outputs, terms, parts, False, 1.0)
        second(device, out, sums, columns, rows, outputs, parts, 1, True, np.float64(scale))

    return call


def inner(kept, i):
    """Return the stride of a kept dimension among outputs in order."""
    stride = 1
    for n, _, _ in kept[i + 1 :]:
        stride *= n
    return stride
