"""Windows over images on the CPU, shared by the operators that have a window.

An image is processed in tiles that stay in the L1 or L2 cache. A tile is copied into float32 scratch memory
with its padding filled in, so that no loop handles borders. A stride above 1 is removed there too, by storing
each residue of the rows and columns apart. One flat loop for each group of taps remains, in which each tap is
an offset, for every kernel size, stride and dilation. If channels are adjacent in memory, the tile has them
too.

In tables of numbers, row 0 of ``axes`` is vertical, row 1 horizontal; ``steps`` has a row of strides for
each tensor: image, channel, row, column; ``grid`` holds the images, the channels and how many of them a
tile has.
"""

# mypy: ignore-errors

import numpy as np
from numba import types

from nxcore_numba import threads
from nxcore_numba.tile import STEP, SURPLUS

SOURCE, TARGET, KERNEL, STRIDE, PADDING, DILATION, TILE, FROM = range(8)
"""Columns of ``axes``; TILE is how much of the target a tile has, FROM where the first one begins."""

ELEMENTS = 16_384
"""Of a gathered tile, about: 64 KiB."""

WIDTH = 1024
"""Of a row of a tile, about."""

CHANNELS = 64
"""The most channels of a tile."""

PARTS = 256
"""The most parts that tiles are shared out in."""

I64 = types.int64
TABLES = (types.int64[:, ::1], types.int64[:, ::1], types.int64[::1])
"""The types of ``axes``, ``steps`` and ``grid``."""


def planes(meta):
    """Return an image's sizes and strides with four dimensions."""
    if meta.ndim == 4:
        return meta.shape, meta.strides
    return (1, *meta.shape), (0, *meta.strides)


def tables(window, target, *metas, backward=False):
    """Return ``axes``, ``steps`` and ``grid``.

    Parameters
    ----------
    window : Window
        Of the operator.
    target : TensorMeta
        What is written: the window's outputs or, if ``backward``, its image. Its layout decides whether
        channels are in the tile.
    metas : TensorMeta
        The tensors that have a row in ``steps``.
    backward : bool
        Whether tiles are of the outputs, and what is written is the image: in steps of the stride, so that
        every position has one set of taps for each residue.
    """
    shape, strides = planes(target)
    count, channels = shape[:2]
    wide = channels > 1 and strides[1] == 1 and (shape[3] == 1 or strides[3] != 1)
    lanes = min(channels, CHANNELS) if wide else 1
    axes = np.zeros((2, 8), np.int64)
    extents: list[int] = []
    for axis in (0, 1):
        image, outputs, stride, padding = (
            pair[axis] for pair in (window.image, window.outputs, window.stride, window.padding)
        )
        first = padding // stride if backward else 0
        extents.append((image - 1 + padding) // stride + 1 - first if backward else outputs)
        source = outputs if backward else image
        axes[axis] = (
            source,
            extents[-1],
            window.kernel[axis],
            stride,
            padding,
            window.dilation[axis],
            0,
            first,
        )
    gap = 1 if backward else axes[1, STRIDE]
    halo = [int((a[KERNEL] - 1) * a[DILATION] // a[STRIDE]) for a in axes]
    axes[1, TILE] = min(extents[1], max(WIDTH // int(gap * lanes) - halo[1], halo[1], 1))
    line = int(axes[1, TILE] + halo[1]) * lanes * int(gap)
    rows = max(ELEMENTS // (line * int(1 if backward else axes[0, STRIDE])) - halo[0], halo[0], 1)
    for axis, most in ((0, rows), (1, int(axes[1, TILE]))):  # tiles of one size leave no thread waiting
        axes[axis, TILE] = -(-extents[axis] // -(-extents[axis] // most))
    steps = np.array([planes(m)[1] for m in metas], np.int64)
    return axes, steps, np.array([count, channels, lanes], np.int64)


def forward_taps(window):
    """Return a window's taps: block of the gathered tile, steps down and right in it, number.

    A residue of the stride is a block.
    """
    (high, wide), (down, right), (y, x) = window.kernel, window.stride, window.dilation
    taps = [
        (a * y % down * right + b * x % right, a * y // down, b * x // right, a * wide + b)
        for a in range(high)
        for b in range(wide)
    ]
    return np.array(taps, np.int64).reshape(-1, 4)


def backward_taps(window):
    """Return the taps that see each residue of the image in steps of the stride.

    Returns
    -------
    taps : ndarray of int64, shape (taps, 4)
        As of ``forward_taps``, in a tile of outputs that begins as far above and to the left of the
        image's as its taps reach; residue by residue.
    starts : ndarray of int64
        Where each residue's taps begin, and the end.
    """
    axes = [
        [
            [(r_reach - (a * gap - r) // step, a) for a in range(size) if a * gap % step == r]
            for r in range(step)
        ]
        for size, step, gap in zip(window.kernel, window.stride, window.dilation, strict=True)
        for r_reach in ((size - 1) * gap // step,)
    ]
    taps, starts = [], [0]
    for rows in axes[0]:
        for columns in axes[1]:
            taps += [(0, down, right, a * window.kernel[1] + b) for down, a in rows for right, b in columns]
            starts.append(len(taps))
    return np.array(taps, np.int64), np.array(starts, np.int64)


@threads.jit
def place_of(tap, block, line, lanes):
    """Return how far a tap is into a gathered tile."""
    return tap[0] * block + tap[1] * line + tap[2] * lanes


@threads.jit
def reach(axis):
    """Return how many steps of the stride the last tap is away from the first."""
    return (axis[KERNEL] - 1) * axis[DILATION] // axis[STRIDE]


@threads.jit
def room(axes, grid):
    """Return the elements of scratch of the largest tile: as gathered, of its rows and of the result.

    A pass runs some elements over, and reads as many further on.
    """
    pitch = (axes[1, TILE] + reach(axes[1])) * grid[2]
    rows = axes[0, STRIDE] * (axes[0, TILE] + reach(axes[0])) * pitch
    return rows * axes[1, STRIDE] + SURPLUS, rows + SURPLUS, axes[0, TILE] * pitch + SURPLUS


@threads.jit
def tiles_of_image(axes):
    """Return how many tiles an image has, of each block of channels."""
    down = (axes[0, TARGET] + axes[0, TILE] - 1) // axes[0, TILE]
    return down * ((axes[1, TARGET] + axes[1, TILE] - 1) // axes[1, TILE])


@threads.jit
def tiles(axes, grid):
    """Return how many tiles there are."""
    return grid[0] * ((grid[1] + grid[2] - 1) // grid[2]) * tiles_of_image(axes)


@threads.jit
def place(index, axes, grid):
    """Return a tile's image and channel, its channels, its first row and column, its height and width."""
    down = (axes[0, TARGET] + axes[0, TILE] - 1) // axes[0, TILE]
    across = (axes[1, TARGET] + axes[1, TILE] - 1) // axes[1, TILE]
    blocks = (grid[1] + grid[2] - 1) // grid[2]
    column, index = index % across * axes[1, TILE], index // across
    row, index = index % down * axes[0, TILE], index // down
    channel, image = index % blocks * grid[2], index // blocks
    height, width = min(axes[0, TILE], axes[0, TARGET] - row), min(axes[1, TILE], axes[1, TARGET] - column)
    return image, channel, min(grid[2], grid[1] - channel), row, column, height, width


@threads.jit
def whole(n):
    """Return the next multiple of STEP."""
    return (n + STEP - 1) // STEP * STEP
