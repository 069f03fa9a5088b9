"""avg_pool2d_backward: a gather, in strips of the usual windows, or of any window by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Window
from nxcore_cuda import pool as pools
from nxcore_cuda import pool_launch as launches
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.instance import Instance
from nxcore_cuda.launch import Launch
from nxcore_cuda.pool import Pool, Tile


def describe(problem: Problem) -> Pool:
    """Return the pool of a problem."""
    window = Window.of_pool(*problem.args[1:5], 1, problem["ceil_mode"])
    return Pool.of(window, (problem["grad"],), (problem.outputs,), forward=False)


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


def preferred(pool: Pool) -> Iterator[Tile]:
    """Yield the tiles that a pool may take, the one that is likely to be fastest first."""
    yield from pools.strips(pool, rows(pool))
    yield pools.window(pool)


def choose(problem: Problem) -> Tile:
    """Return the tile for a problem."""
    pool = describe(problem)
    return launches.prefer(preferred(pool), partial(instance, problem.dtype, pool), problem.device)


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    pool = describe(problem)
    yield from pools.variations(pool, choose(problem), preferred(pool))


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(grad, size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override,
        memory_format)``.
    """
    pool, out = describe(problem), problem.outputs
    bounds, divisor = launches.bounds(pool.window, problem["count_include_pad"]), problem["divisor_override"]

    def launch(tile: Tile, made: Instance) -> Launch:
        bound = partial(launches.launch, pool, tile, made, problem.device, pointers=2)
        if tile.kind == "window":
            values = (*launches.pool_window(pool.window), *bounds, divisor or 0)
            return bound(f"{launches.WINDOW}5i", values, strided=1)
        sizes = (*pool.window.image, *pool.window.outputs)
        return bound(f"8i{launches.SCALES}", (*sizes, *bounds, *launches.scales(divisor)), strided=2)

    make = partial(instance, problem.dtype, pool)
    run = launches.bind(tile or choose(problem), preferred(pool), make, problem.device, launch)

    def call(grad: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        run(grad, result)
        return result

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels that ordinary calls want."""
    for dtype in FLOATS:
        for pool in pools.usual(dtype, forward=False):
            for tile in preferred(pool):
                for count in rows(pool):
                    yield instance(dtype, pool, replace(tile, rows=count))
