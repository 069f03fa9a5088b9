"""Strided memory in the kernels: rows of an innermost run, cut into pieces."""

# mypy: ignore-errors

import numpy as np

from nxcore_numba import threads
from nxcore_numba.dims import DIMS, collapse


def table(shape, strides):
    """Return the fewest dimensions that say the same, sizes in column 0 and strides in the others.

    Parameters
    ----------
    shape : tuple of int
        The shape that all operands share or are broadcast to.
    strides : sequence of tuple of int
        Each operand's strides, 0 where it is broadcast; the first operand's decide the order.

    Returns
    -------
    ndarray of int64, shape (DIMS, 1 + operands)
        Outermost first, filled up with dimensions of size 1 in front.

    Raises
    ------
    ValueError
        If there are more than ``DIMS`` of them.
    """
    dims = collapse(shape, strides)
    if len(dims) > DIMS:
        raise ValueError(f"takes at most {DIMS} dimensions that can't be merged, got {len(dims)}")
    filler = [(1, *(0,) * len(strides))] * (DIMS - len(dims))
    return np.array(filler + dims, dtype=np.int64)


@threads.jit
def items(dims, chunk):
    """Return how many pieces of at most ``chunk`` elements the rows of the last dimension fall into."""
    return dims[0, 0] * dims[1, 0] * dims[2, 0] * ((dims[3, 0] + chunk - 1) // chunk)


@threads.jit
def item_of(dims, item, chunk):
    """Return a piece's row, its start in that row and its size."""
    length = dims[3, 0]
    pieces = (length + chunk - 1) // chunk
    start = (item % pieces) * chunk
    return item // pieces, start, min(chunk, length - start)


@threads.jit
def offset(dims, row, start, operand):
    """Return where a piece begins in the operand of that column, in elements."""
    place = start * dims[3, operand] + (row % dims[2, 0]) * dims[2, operand]
    row //= dims[2, 0]
    return place + (row % dims[1, 0]) * dims[1, operand] + (row // dims[1, 0]) * dims[0, operand]
