"""The average pools, forward and backward: how a mean's tile is chosen, launched and built ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Window
from nxcore_cuda import pool as pools
from nxcore_cuda import pool_launch as launches
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launcher
from nxcore_cuda.pool import Pool, Tile

SCALES = "16f"  # down and across, one for each count of taps from 0 to 7


@dataclass(frozen=True)
class Mean:
    """One direction of the average pool.

    Attributes
    ----------
    instance : callable
        ``instance(dtype, pool, tile)`` is the kernel of a tile.
    rows : callable
        ``rows(pool)`` are how many rows of what is written a thread may have.
    forward : bool
        The outputs are written, else the input's gradient.
    """

    instance: Callable[[torch.dtype, Pool, Tile], Instance]
    rows: Callable[[Pool], tuple[int, ...]]
    forward: bool

    def choose(self, problem: Problem) -> Tile:
        """Return the tile for a problem."""
        pool = self._pool(problem)
        return launches.prefer(
            self._preferred(pool), partial(self.instance, problem.dtype, pool), problem.device
        )

    def sweep(self, problem: Problem) -> Iterator[Tile]:
        """Yield the tiles worth timing."""
        pool = self._pool(problem)
        yield from pools.variations(pool, self.choose(problem), self._preferred(pool))

    def plan(self, problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
        """Return the launch for one problem.

        It takes the operator's arguments, all positional.
        """
        pool, out = self._pool(problem), problem.outputs
        divisor = problem["divisor_override"]
        limits = bounds(pool.window, problem["count_include_pad"])

        def launch(tile: Tile, made: Instance) -> Launcher:
            bound = partial(launches.launch, pool, tile, made, problem.device, pointers=2)
            if tile.kind == "window":
                values = (*launches.pool_window(pool.window), *limits, divisor or 0)
                return bound(f"{launches.WINDOW}5i", values, strided=1)
            sizes = (*pool.window.image, *pool.window.outputs)
            return bound(f"8i{SCALES}", (*sizes, *limits, *scales(divisor)), strided=2)

        make = partial(self.instance, problem.dtype, pool)
        run = launches.bind(tile or self.choose(problem), self._preferred(pool), make, problem.device, launch)

        def call(x: Tensor, *_: Any) -> Tensor:
            result = out.empty()
            run(x, result)
            return result

        return call

    def instances(self) -> Iterator[Instance]:
        """Yield the kernels that ordinary calls want."""
        for dtype in FLOATS:
            for pool in pools.usual(dtype, forward=self.forward):
                for tile in self._preferred(pool):
                    for count in self.rows(pool):
                        yield self.instance(dtype, pool, replace(tile, rows=count))

    def _pool(self, problem: Problem) -> Pool:
        read, written = problem.args[0], problem.outputs
        image = read if self.forward else written
        steps = (problem["kernel_size"], problem["stride"], problem["padding"])
        window = Window.of_pool(image.shape, *steps, 1, problem["ceil_mode"])
        return Pool.of(window, (read,), (written,), forward=self.forward)

    def _preferred(self, pool: Pool) -> Iterator[Tile]:
        """Yield the tiles that a pool may take, the one that is likely to be fastest first."""
        yield from pools.strips(pool, self.rows(pool))
        yield pools.window(pool)


def bounds(found: Window, include_pad: Any) -> tuple[int, ...]:
    """Return between which rows, and between which columns, taps count in a mean's divisor."""
    pads = found.padding if include_pad else (0, 0)
    return tuple(n for size, pad in zip(found.image, pads, strict=True) for n in (-pad, size + pad))


def scales(divisor: int | None) -> tuple[float, ...]:
    """Return what a sum of 0 to 7 taps down is multiplied by, and then the same across."""
    each = (0.0, *(1.0 / n for n in range(1, 8)))
    return each + each if divisor is None else (1.0,) * 8 + (1.0 / divisor,) * 8
