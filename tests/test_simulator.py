"""Numba's simulator of CUDA runs the threads of a block in turns."""

# mypy: ignore-errors

import sys

import numpy as np
import pytest

cuda = pytest.importorskip("numba.cuda")
if "numba.cuda.simulator.kernel" not in sys.modules:
    pytest.skip("there is a device, so nothing is simulated", allow_module_level=True)


@cuda.jit(device=True)
def ahead(at):
    return at + cuda.threadIdx.x


@cuda.jit
def orders(order):
    """Write when each thread runs, between barriers."""
    at = cuda.threadIdx.x
    for part in range(3):
        order[part, cuda.atomic.add(order, (part, 4), 1)] = ahead(0)
        cuda.syncthreads()
    order[3, cuda.atomic.add(order, (3, 4), 1)] = at


def test_the_order_turns_at_every_barrier():
    order = np.zeros((4, 5), dtype=np.int64)
    orders[1, 4](order)
    assert order[:, :4].tolist() == [[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3], [3, 2, 1, 0]]


@cuda.jit
def reversed_in_blocks(x, y, wait):
    shared = cuda.shared.array(8, np.float32)
    at = cuda.threadIdx.x
    if at >= x.shape[1]:
        return  # a barrier is for those that are left
    shared[at] = x[cuda.blockIdx.x, at]
    if wait:
        cuda.syncthreads()
    y[cuda.blockIdx.x, at] = shared[x.shape[1] - 1 - at]


def test_what_is_shared_is_written_at_the_barrier():
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    y = np.zeros_like(x)
    reversed_in_blocks[2, 8](x, y, True)
    assert (y == x[:, ::-1]).all()
    reversed_in_blocks[2, 8](x, y, False)
    assert (y != x[:, ::-1]).any()


@cuda.jit
def counts(x, y):
    at = cuda.threadIdx.x
    y[0, at] = cuda.syncthreads_count(x[at])
    y[1, at] = cuda.syncthreads_and(x[at])
    y[2, at] = cuda.syncthreads_or(x[at])
    y[3, at] = cuda.laneid


def test_votes():
    y = np.zeros((4, 3), dtype=np.int64)
    counts[1, 3](np.array([True, False, True]), y)
    assert y.tolist() == [[2] * 3, [0] * 3, [1] * 3, [0, 1, 2]]


@cuda.jit
def past_the_end(x):
    cuda.syncthreads()
    if cuda.threadIdx.x == 2:
        x[4] = 0
    cuda.syncthreads()


def test_the_thread_that_fails_is_named_and_the_next_launch_runs():
    x = np.zeros(4)
    with pytest.raises(IndexError, match=r"tid=\[2, 0, 0\] ctaid=\[0, 0, 0\]: index 4 is out of bounds"):
        past_the_end[1, 4](x)
    order = np.zeros((4, 5), dtype=np.int64)
    orders[1, 4](order)
    assert (order[:, 4] == 4).all()
