"""max_pool2d: strips of the usual windows, whose maxima are shared down and across; any window by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, TensorMeta, Window
from nxcore_cuda import pool as pools
from nxcore_cuda import pool_launch as launches
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launcher
from nxcore_cuda.pool import WARP, Pool, Tile

PLACES = {torch.uint8: "unsigned char", torch.int32: "int", torch.int64: "long long", None: "pool::nothing"}
"""Type of the position of a maximum: the number of its tap, or its index in the plane if int64."""


def describe(problem: Problem) -> Pool:
    """Return the pool of a problem."""
    x, outputs = problem["x"], problem.outputs
    window = Window.of_pool(x.shape, *problem.args[1:6])
    return Pool.of(window, (x,), outputs if isinstance(outputs, tuple) else (outputs,))


def _types(problem: Problem) -> tuple[torch.dtype, torch.dtype | None]:
    outputs = problem.outputs
    return problem.dtype, outputs[1].dtype if isinstance(outputs, tuple) else None


def instance(types: tuple[torch.dtype, torch.dtype | None], pool: Pool, tile: Tile) -> Instance:
    """Return the kernel of a tile, for elements and places of these types."""
    spelt = (TYPES[types[0]], PLACES[types[1]])
    if tile.kind == "window" or pool.square is None:
        return Instance("max_pool2d_window", spelt, source="max_pool2d")
    sizes = (*pool.square, tile.columns, tile.channels, tile.rows, tile.vector)
    # The compiler spills places where it may hope for more blocks: those of windows apart, and wide ones.
    spills = types[1] is torch.int64 or (types[1] is not None and pool.window.stride[0] > 1)
    blocks = max(tile.blocks, int(spills))
    threads = max(tile.threads, 128)
    return Instance("max_pool2d", (*spelt, *sizes), source="max_pool2d", threads=threads, blocks=blocks)


def rows(pool: Pool, places: bool) -> tuple[int, ...]:
    """Return how many rows of outputs a thread may have."""
    small = pool.window.kernel[0] < pools.LARGE
    if pool.channels_inside:
        return (4,) if small else (4, 8)
    if places and small and pool.window.stride == (1, 1):
        return (2,)
    return (2, 8) if pool.window.stride == (1, 1) else (1, 4)


def preferred(pool: Pool, places: bool) -> Iterator[Tile]:
    """Yield the tiles that a pool may take, the one that is likely to be fastest first."""
    # A float32 and its place take two registers, and more of them than there are.
    large = places and pool.window.kernel[0] >= pools.LARGE
    most = 16 // pool.itemsize if large else 16
    yield from pools.strips(pool, rows(pool, places), most, int(not places or pool.channels_inside))
    yield pools.window(pool)


def choose(problem: Problem) -> Tile:
    """Return the tile for a problem."""
    pool, types = describe(problem), _types(problem)
    return launches.prefer(
        preferred(pool, types[1] is not None), partial(instance, types, pool), problem.device
    )


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    pool, types = describe(problem), _types(problem)
    yield from pools.variations(pool, choose(problem), preferred(pool, types[1] is not None))


def launch_of(problem: Problem, tile: Tile | None) -> Callable[..., None]:
    """Return the launch for one problem: ``launch(x, out, places)``, places None if not requested."""
    pool, types = describe(problem), _types(problem)

    def launch(tile: Tile, made: Instance) -> Launcher:
        bound = partial(launches.launch, pool, tile, made, problem.device, pointers=3)
        if tile.kind == "window":
            return bound(launches.WINDOW, launches.pool_window(pool.window), strided=1)
        return bound("4i", (*pool.window.image, *pool.window.outputs), strided=2)

    found, make = preferred(pool, types[1] is not None), partial(instance, types, pool)
    return launches.bind(tile or choose(problem), found, make, problem.device, launch)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Any]:
    """Return the launch for one problem: ``call(x, ...)``, with the operator's arguments."""
    outputs, run = problem.outputs, launch_of(problem, tile)
    if isinstance(outputs, TensorMeta):

        def call(x: Tensor, *_: Any) -> Tensor:
            result = outputs.empty()
            run(x, result, None)
            return result

        return call
    out, places = outputs

    def call_for_both(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        results = out.empty(), places.empty()
        run(x, *results)
        return results

    return call_for_both


def usual(places: torch.dtype | None) -> Iterator[Instance]:
    """Yield the kernels that ordinary calls want, for places of this type."""
    for dtype in FLOATS:
        for pool in pools.usual(dtype):
            for tile in preferred(pool, places is not None):
                for count in rows(pool, places is not None):
                    yield instance((dtype, places), pool, replace(tile, rows=count))


def instances() -> Iterator[Instance]:
    """Yield the kernels that ordinary calls want."""
    yield from usual(None)
    yield from usual(torch.uint8)
    for dtype in FLOATS:
        for places in (torch.int64, torch.int32):
            yield Instance("max_pool2d_window", (TYPES[dtype], PLACES[places]), source="max_pool2d")
    yield from _instances_backward()


SHARED = 16 * 1024  # bytes of a warp's sums, at most: so many warps fit that loads are waited for by few
LARGE = 7  # windows that reach so many inputs that most comparisons of a strip are in vain


def describe_backward(problem: Problem) -> Pool:
    """Return the pool of a problem."""
    window = Window.of_pool(*problem.args[2:])
    return Pool.of(window, (problem["grad"], problem["offsets"]), (problem.outputs,), forward=False)


def instance_backward(types: tuple[torch.dtype, torch.dtype], pool: Pool, tile: Tile) -> Instance:
    """Return the kernel of a tile, for gradients and offsets of these types."""
    kind, source = TYPES[types[0]], "max_pool2d_backward"
    if tile.kind == "window" or pool.square is None:
        # The compiler spills where it may hope for more blocks.
        return Instance(f"{source}_window", (kind, PLACES[types[1]]), source=source, blocks=1)
    if tile.kind == "rounds":
        return Instance(f"{source}_rounds", (kind, pool.square[0]), source=source, blocks=max(tile.blocks, 1))
    sizes = (*pool.square, tile.columns, tile.channels, tile.rows, tile.vector)
    return Instance(source, (kind, *sizes), threads=max(tile.threads, 128), blocks=tile.blocks)


def rows_backward(pool: Pool) -> tuple[int, ...]:
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


def preferred_backward(pool: Pool) -> Iterator[Tile]:
    """Yield the tiles that a pool may take, the one that is likely to be fastest first."""
    if pool.window.kernel[0] >= LARGE:
        yield from rounds(pool)
    yield from pools.strips(pool, rows_backward(pool), blocks=int(not pool.channels_inside))
    yield pools.window(pool)


def _types_backward(problem: Problem) -> tuple[torch.dtype, torch.dtype]:
    return problem.dtype, problem["offsets"].dtype


def choose_backward(problem: Problem) -> Tile:
    """Return the tile for a problem."""
    pool = describe_backward(problem)
    return launches.prefer(
        preferred_backward(pool), partial(instance_backward, _types_backward(problem), pool), problem.device
    )


def sweep_backward(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    pool = describe_backward(problem)
    yield from pools.variations(pool, choose_backward(problem), (*rounds(pool), *preferred_backward(pool)))


def plan_backward(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    It is called as ``call(grad, offsets, size, kernel_size, stride, padding, dilation, ceil_mode)``.
    """
    pool, out = describe_backward(problem), problem.outputs
    sizes = (*pool.window.image, *pool.window.outputs)

    def launch(tile: Tile, made: Instance) -> Launcher:
        bound = partial(launches.launch, pool, tile, made, problem.device, pointers=3)
        if tile.kind == "window":
            return bound(launches.WINDOW, launches.pool_window(pool.window), strided=2)
        if tile.kind == "rounds":
            shared = tile.threads // WARP * (tile.rows * pool.window.image[1] + WARP) * 4
            return bound("7i", (*sizes, *pool.window.padding, tile.rows), strided=3, shared=shared)
        return bound("4i", sizes, strided=3)

    make = partial(instance_backward, _types_backward(problem), pool)
    run = launches.bind(
        tile or choose_backward(problem), preferred_backward(pool), make, problem.device, launch
    )

    def call(grad: Tensor, offsets: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        run(grad, offsets, result)
        return result

    return call


def _instances_backward() -> Iterator[Instance]:
    """Yield the kernels that ordinary calls want."""
    for dtype in FLOATS:
        types = dtype, torch.uint8
        for pool in pools.usual(dtype, taps=True, forward=False):
            for tile in preferred_backward(pool):
                for count in rows_backward(pool):
                    yield instance_backward(types, pool, replace(tile, rows=count))
        yield instance_backward((dtype, torch.int32), pool, Tile())
