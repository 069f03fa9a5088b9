"""avg_pool2d_backward: a gather, in strips of the usual windows, or of any window by itself."""

from __future__ import annotations

import torch

from nxcore_cuda import pool as pools
from nxcore_cuda.average import Mean
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.pool import Pool, Tile


def instance(dtype: torch.dtype, pool: Pool, tile: Tile) -> Instance:
    """Return the kernel of a tile."""
    if tile.kind == "window" or pool.square is None:
        return Instance("avg_pool2d_backward_window", (TYPES[dtype],), source="avg_pool2d_backward", blocks=1)
    sizes = (*pool.square, tile.columns, tile.channels, tile.rows, tile.vector)
    # The compiler spills single elements of large windows where it may hope for more blocks.
    spills = pool.window.kernel[0] >= pools.LARGE and not tile.aligned and dtype.itemsize == 2
    blocks = max(tile.blocks, int(spills))
    return Instance(
        "avg_pool2d_backward", (TYPES[dtype], *sizes), threads=max(tile.threads, 128), blocks=blocks
    )


def rows(pool: Pool) -> tuple[int, ...]:
    """Return how many rows of the image a thread may have."""
    if pool.channels_inside:
        return (4,) if pool.window.kernel[0] < pools.LARGE else (4, 8)
    return (2, 8)


MEAN = Mean(instance, rows, forward=False)
plan, choose, sweep, instances = MEAN.plan, MEAN.choose, MEAN.sweep, MEAN.instances
