"""Channels of images on the CPU, for batch_norm and its gradients: what they share.

A channel is three dimensions, rows of (size, a stride an operand), whose innermost one is passed in runs of
at most ``BLOCK`` elements. Runs are added up in float32, in as many accumulators as vectors hold, and their
sums in float64, always in the same order: a channel is one thread's.
"""

# mypy: ignore-errors

import math

import numpy as np

from nxcore.plugin import collapse
from nxcore_numba import threads

BLOCK = 2048
"""Elements of a run."""

KINDS = 3
"""Dimensions of a channel, at most."""


@threads.jit
def runs(table):
    """Return how many runs a channel has."""
    return table[0, 0] * table[1, 0] * ((table[2, 0] + BLOCK - 1) // BLOCK)


@threads.jit
def start(table, run, operand):
    """Return where a run begins in an operand."""
    blocks = (table[2, 0] + BLOCK - 1) // BLOCK
    line, block = run // blocks, run % blocks
    at = (line // table[1, 0]) * table[0, operand] + (line % table[1, 0]) * table[1, operand]
    return at + block * BLOCK * table[2, operand]


@threads.jit
def length(table, run):
    """Return how many elements a run has."""
    blocks = (table[2, 0] + BLOCK - 1) // BLOCK
    return min(BLOCK, table[2, 0] - run % blocks * BLOCK)


def rest(values):
    """Return what belongs to a channel's dimensions of sizes or strides."""
    return (values[0], *values[2:])


def table_of(*operands):
    """Return the dimensions of a channel, and the steps from one channel to the next, an operand each."""
    first = operands[0]
    sizes, strides = collapse(rest(first.shape), *(rest(m.strides) for m in operands))
    rows = list(zip(sizes, *strides, strict=True))
    rows = [(1, *(0,) * len(operands))] * (KINDS - len(rows)) + rows
    return np.array(rows, np.int64), np.array([m.strides[1] for m in operands], np.int64)


def count_of(x):
    """Return how many values a channel has."""
    return math.prod(rest(x.shape))
