"""batch_norm_backward on CUDA: one launch for two sums of each channel's slices, one for the gradients."""

import math

import numpy as np
import torch

from nxcore_numba.gpu.batch_norm import add_up, gather, place, walk
from nxcore_numba.gpu.launch import THREADS, Launch, cuda


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


def plan(problem):
    """Return a callable for calls like ``problem``."""
    outs, affine, device = problem.outputs, problem["weight"] is not None, problem.device
    x_meta = problem["x"]
    table, steps, count, splits, blocks = walk(x_meta, problem["grad"], outs[0] or x_meta)
    wanted = tuple(out is not None for out in outs)
    first, second = Launch(products, blocks), Launch(spread, blocks)

    def call(grad, x, mean, var, weight, eps, output_mask):  # noqa: ARG001  it is part of the plan
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
