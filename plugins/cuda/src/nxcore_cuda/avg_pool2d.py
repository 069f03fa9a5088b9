"""avg_pool2d: strips of the usual windows, whose sums are shared down and across; any window by itself."""

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
        return Instance("avg_pool2d_window", (TYPES[dtype],), source="avg_pool2d")
    sizes = (*pool.square, tile.columns, tile.channels, tile.rows, tile.vector)
    return Instance("avg_pool2d", (TYPES[dtype], *sizes), threads=max(tile.threads, 128), blocks=tile.blocks)


def rows(pool: Pool) -> tuple[int, ...]:
    """Return how many rows of outputs a thread may have."""
    if pool.channels_inside:
        return (4,) if pool.window.kernel[0] < pools.LARGE else (4, 8)
    return (2, 8) if pool.window.stride == (1, 1) else (1, 4)


MEAN = Mean(instance, rows, forward=True)
plan, choose, sweep, instances = MEAN.plan, MEAN.choose, MEAN.sweep, MEAN.instances
