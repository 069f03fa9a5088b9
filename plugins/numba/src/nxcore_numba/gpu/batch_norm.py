"""batch_norm on CUDA: one launch for the sums of each channel's slices, one that adds them up and normalises.

Sums and sums of squares are in float64, so that their difference is exact to float32.
"""

# mypy: ignore-errors

import math

import numpy as np
import torch

from nxcore_numba.channel import count_of, table_of
from nxcore_numba.gpu.launch import BLOCKS, THREADS, Launch, cuda

MOST = 128
"""Blocks that share a channel, at most: each adds up what all of them left."""


@cuda.jit(device=True)
def place(i, table, operand):
    """Return where a channel's ``i``-th element lies; rows of the table are (size, a stride an operand)."""
    c, rest = i % table[2][0], i // table[2][0]
    b, a = rest % table[1][0], rest // table[1][0]
    return a * table[0][operand] + b * table[1][operand] + c * table[2][operand]


@cuda.jit(device=True)
def add_up(parts):
    """Add up two rows of THREADS numbers in place, as a tree."""
    lane, half = cuda.threadIdx.x, THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if lane < half:
            parts[0, lane] += parts[0, lane + half]
            parts[1, lane] += parts[1, lane + half]
        half //= 2
    cuda.syncthreads()


@cuda.jit(device=True)
def gather(parts, shares, channel, splits):
    """Have every thread find the channel's two sums in the first place of the rows."""
    first, second, split = np.float64(0), np.float64(0), cuda.threadIdx.x
    while split < splits:
        first += shares[2 * (channel * splits + split)]
        second += shares[2 * (channel * splits + split) + 1]
        split += cuda.blockDim.x
    parts[0, cuda.threadIdx.x] = first
    parts[1, cuda.threadIdx.x] = second
    add_up(parts)


@cuda.jit
def moments(shares, x, table, x_step, count, splits):
    """Leave the sums of one slice of a channel: block (channel, slice)."""
    channel, split = np.int64(cuda.blockIdx.x) // splits, np.int64(cuda.blockIdx.x) % splits
    total, squares = np.float64(0), np.float64(0)
    i, end = split * count // splits + cuda.threadIdx.x, (split + 1) * count // splits
    while i < end:
        value = np.float64(np.float32(x[channel * x_step + place(i, table, 1)]))
        total += value
        squares += value * value
        i += cuda.blockDim.x
    parts = cuda.shared.array((2, THREADS), np.float64)
    parts[0, cuda.threadIdx.x] = total
    parts[1, cuda.threadIdx.x] = squares
    add_up(parts)
    if cuda.threadIdx.x == 0:
        shares[2 * cuda.blockIdx.x] = parts[0, 0]
        shares[2 * cuda.blockIdx.x + 1] = parts[1, 0]


@cuda.jit
def normalise(y, mean, var, x, weight, bias, affine, eps, shares, table, x_step, y_step, count, splits):
    """Normalise one slice of a channel; the first one's block writes the statistics."""
    channel, split = np.int64(cuda.blockIdx.x) // splits, np.int64(cuda.blockIdx.x) % splits
    parts = cuda.shared.array((2, THREADS), np.float64)
    gather(parts, shares, channel, splits)
    exact = parts[0, 0] / count
    squares = parts[1, 0] - exact * parts[0, 0]
    if squares < 0:  # of equal numbers, by a rounding; NaN stays
        squares = np.float64(0)
    centre = np.float32(exact)
    if split == 0 and cuda.threadIdx.x == 0:
        mean[channel] = centre
        var[channel] = np.float32(squares / (count - 1))
    scale, shift = 1.0 / math.sqrt(squares / count + eps), np.float64(0)
    if affine:
        scale *= np.float64(np.float32(weight[channel]))
        shift = np.float64(np.float32(bias[channel]))
    factor, offset = np.float32(scale), np.float32(shift)
    i, end = split * count // splits + cuda.threadIdx.x, (split + 1) * count // splits
    while i < end:
        value = np.float32(x[channel * x_step + place(i, table, 1)])
        y[channel * y_step + place(i, table, 2)] = (value - centre) * factor + offset
        i += cuda.blockDim.x


def walk(*operands):
    """Return a channel's table as tuples, the steps between channels, how many values, slices and blocks."""
    table, steps = table_of(*operands)
    channels, count = operands[0].shape[1], count_of(operands[0])
    splits = max(1, min(MOST, BLOCKS // channels, count // THREADS))
    rows = tuple(tuple(np.int64(n) for n in row) for row in table)
    return rows, tuple(np.int64(s) for s in steps), np.int64(count), np.int64(splits), channels * splits


def plan(problem):
    """Return a callable for calls like ``problem``."""
    affine, (out, statistic, _), device = problem["weight"] is not None, problem.outputs, problem.device
    table, (x_step, y_step), count, splits, blocks = walk(problem["x"], out)
    first, second = Launch(moments, blocks), Launch(normalise, blocks)

    def call(x, weight, bias, eps):
        y, mean, var = out.empty(), statistic.empty(), statistic.empty()
        shares = torch.empty(2 * blocks, dtype=torch.float64, device=device)
        first(device, shares, x, table, x_step, count, splits)
        scale, shift = (weight, bias) if affine else (mean, mean)  # which then aren't read
        second(
            device, y, mean, var, x, scale, shift, affine, np.float64(eps), shares, table, x_step, y_step,
            count, splits,
        )  # fmt: skip
        return y, mean, var

    return call


@cuda.jit
def products(shares, x, grad, mean, table, x_step, grad_step, count, splits):
    """Leave the sums of grad and of grad * (x - mean) of one slice of a channel: block (channel, slice)."""
    channel, split = np.int64(cuda.blockIdx.x) // splits, np.int64(cuda.blockIdx.x) % splits
    total, product, centre = np.float64(0), np.float64(0), mean[channel]
    i, end = split * count // splits + cuda.threadIdx.x, (split + 1) * count // splits
    while i < end:
        g = np.float32(grad[channel * grad_step + place(i, table, 2)])
        total += np.float64(g)
        product += np.float64(g * (np.float32(x[channel * x_step + place(i, table, 1)]) - centre))
        i += cuda.blockDim.x
    parts = cuda.shared.array((2, THREADS), np.float64)
    parts[0, cuda.threadIdx.x] = total
    parts[1, cuda.threadIdx.x] = product
    add_up(parts)
    if cuda.threadIdx.x == 0:
        shares[2 * cuda.blockIdx.x] = parts[0, 0]
        shares[2 * cuda.blockIdx.x + 1] = parts[1, 0]


@cuda.jit
def spread(
    x_grad,
    weight_grad,
    bias_grad,
    wanted,
    x,
    grad,
    mean,
    var,
    weight,
    affine,
    eps,
    shares,
    table,
    steps,
    count,
    splits,
):
    """Write the gradient of one slice of a channel; the first one's block writes those of the factors."""
    channel, split = np.int64(cuda.blockIdx.x) // splits, np.int64(cuda.blockIdx.x) % splits
    parts = cuda.shared.array((2, THREADS), np.float64)
    gather(parts, shares, channel, splits)
    total, product, centre = parts[0, 0], parts[1, 0], mean[channel]
    variance = np.float64(var[channel]) * (count - 1) / count + eps
    inverse = 1.0 / math.sqrt(variance) if variance > 0 else math.nan  # the simulator's root would raise
    if split == 0 and cuda.threadIdx.x == 0:
        if wanted[1]:
            weight_grad[channel] = np.float32(product * inverse)
        if wanted[2]:
            bias_grad[channel] = np.float32(total)
    if wanted[0]:
        scale = inverse
        if affine:
            scale *= np.float64(np.float32(weight[channel]))
        factor, level = np.float32(scale), np.float32(total / count)
        slope = np.float32(product / count * inverse * inverse)
        i, end = split * count // splits + cuda.threadIdx.x, (split + 1) * count // splits
        while i < end:
            off = np.float32(x[channel * steps[0] + place(i, table, 1)]) - centre
            g = np.float32(grad[channel * steps[1] + place(i, table, 2)])
            x_grad[channel * steps[2] + place(i, table, 3)] = factor * (g - level - off * slope)
            i += cuda.blockDim.x


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    outs, affine, device = problem.outputs, problem["weight"] is not None, problem.device
    x_meta = problem["x"]
    table, steps, count, splits, blocks = walk(x_meta, problem["grad"], outs[0] or x_meta)
    wanted = tuple(out is not None for out in outs)
    first, second = Launch(products, blocks), Launch(spread, blocks)

    def call(grad, x, mean, var, weight, eps, output_mask):
        results = tuple([None if out is None else out.empty() for out in outs])
        shares = torch.empty(2 * blocks, dtype=torch.float64, device=device)
        first(device, shares, x, grad, mean, table, *steps[:2], count, splits)
        written = [mean if t is None else t for t in results]  # what isn't wanted isn't written
        second(
            device, *written, wanted, x, grad, mean, var, weight if affine else mean, affine,
            np.float64(eps), shares, table, steps, count, splits,
        )  # fmt: skip
        return results

    return call
