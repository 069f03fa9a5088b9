"""max_pool2d_backward: a gather, in strips of the usual windows, rounds of large ones, or of any window."""

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
from nxcore_cuda.max_pool2d import PLACES
from nxcore_cuda.pool import WARP, Pool, Tile

SHARED = 16 * 1024  # bytes of a warp's sums, at most: so many warps fit that loads are waited for by few
LARGE = 7  # windows that reach so many inputs that most comparisons of a strip are in vain


def describe(problem: Problem) -> Pool:
    """Return the pool of a problem."""
    window = Window.of_pool(*problem.args[2:])
    return Pool.of(window, (problem["grad"], problem["offsets"]), (problem.outputs,), forward=False)


def instance(types: tuple[torch.dtype, torch.dtype], pool: Pool, tile: Tile) -> Instance:
    """Return the kernel of a tile, for gradients and offsets of these types."""
    kind, source = TYPES[types[0]], "max_pool2d_backward"
    if tile.kind == "window" or pool.square is None:
        # The compiler spills where it may hope for more blocks.
        return Instance(f"{source}_window", (kind, PLACES[types[1]]), source=source, blocks=1)
    if tile.kind == "rounds":
        return Instance(f"{source}_rounds", (kind, pool.square[0]), source=source, blocks=max(tile.blocks, 1))
    sizes = (*pool.square, tile.columns, tile.channels, tile.rows, tile.vector)
    return Instance(source, (kind, *sizes), threads=max(tile.threads, 128), blocks=tile.blocks)


def rows(pool: Pool) -> tuple[int, ...]:
    """Return how many rows of the image a thread may have."""
    if pool.channels_inside:
        return (4,) if pool.window.kernel[0] < pools.LARGE else (4, 8)
    return (2, 8)


def rounds(pool: Pool) -> Iterator[Tile]:
    """Yield the tile of the kernel whose warps have the sums of some rows in shared memory."""
    *_, height, width = pool.writes[0].shape
    if pool.square is None or pool.square[1] != 1 or pool.square[0] < 5 or pool.channels_inside:
        return
    bands = -(-height * width * 4 // SHARED)
    count = -(-height // bands)
    if count >= min(height, pool.square[0]):
        warps = max(min(4, 2 * SHARED // (4 * count * width)), 1)
        yield Tile("rounds", rows=count, columns=width, lanes=WARP, threads=warps * WARP)


def preferred(pool: Pool) -> Iterator[Tile]:
    """Yield the tiles that a pool may take, the one that is likely to be fastest first."""
    if pool.window.kernel[0] >= LARGE:
        yield from rounds(pool)
    yield from pools.strips(pool, rows(pool), blocks=int(not pool.channels_inside))
    yield pools.window(pool)


def _types(problem: Problem) -> tuple[torch.dtype, torch.dtype]:
    return problem.dtype, problem["offsets"].dtype


def choose(problem: Problem) -> Tile:
    """Return the tile for a problem."""
    pool = describe(problem)
    return launches.prefer(preferred(pool), partial(instance, _types(problem), pool), problem.device)


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    pool = describe(problem)
    yield from pools.variations(pool, choose(problem), (*rounds(pool), *preferred(pool)))


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(grad, offsets, size, kernel_size, stride, padding, dilation, ceil_mode)``.
    """
    pool, out = describe(problem), problem.outputs
    sizes = (*pool.window.image, *pool.window.outputs)

    def launch(tile: Tile, made: Instance) -> Launch:
        bound = partial(launches.launch, pool, tile, made, problem.device, pointers=3)
        if tile.kind == "window":
            return bound(launches.WINDOW, launches.pool_window(pool.window), strided=2)
        if tile.kind == "rounds":
            shared = tile.threads // WARP * (tile.rows * pool.window.image[1] + WARP) * 4
            return bound("7i", (*sizes, *pool.window.padding, tile.rows), strided=3, shared=shared)
        return bound("4i", sizes, strided=3)

    make = partial(instance, _types(problem), pool)
    run = launches.bind(tile or choose(problem), preferred(pool), make, problem.device, launch)

    def call(grad: Tensor, offsets: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        run(grad, offsets, result)
        return result

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels that ordinary calls want."""
    for dtype in FLOATS:
        types = dtype, torch.uint8
        for pool in pools.usual(dtype, taps=True, forward=False):
            for tile in preferred(pool):
                for count in rows(pool):
                    yield instance(types, pool, replace(tile, rows=count))
        yield instance((dtype, torch.int32), pool, Tile())
