"""pointwise_conv2d: a thread has two pixels of sixteen channels out; warps share the channels in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem
from nxcore_cuda import points
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher
from nxcore_cuda.points import LAYOUT, THREADS, Points, Tile

SOURCE = "pointwise_conv2d"


def instance(dtype: torch.dtype, layout: Points, tile: Tile) -> Instance:
    """Return the kernel of a tile."""
    stride = layout.sizes.stride if tile.pixels > 1 else 0
    return _product("pointwise_conv2d_image" if layout.turned else SOURCE, dtype, stride, tile)


def _product(entry: str, dtype: torch.dtype, stride: int, tile: Tile) -> Instance:
    return Instance(
        entry,
        (TYPES[dtype], stride, tile.pixels, tile.made, tile.slices),
        source=SOURCE if entry == SOURCE else f"{SOURCE}_backward",
        args=f"points_args<{TYPES[dtype]}>",
        blocks=2 if tile.pixels > 1 else 0,
    )


def bind(problem: Problem, layout: Points, tile: Tile | None = None) -> Launcher:
    """Return the launch of a product: ``launch(x, weight, shifted, seen, out)``."""

    def launch(tile: Tile) -> Launcher:
        return Launch(
            instance(problem.dtype, layout, tile),
            problem.device,
            layout.blocks(tile),
            THREADS,
            layout.bytes(tile),
            pointers=5,
            layout=LAYOUT,
            values=layout.values(tile),
        )

    chosen = tile or points.choose(layout)
    if chosen.pixels == 1:
        return launch(chosen)
    return Guarded(launch(chosen), launch(Tile(1, chosen.made, chosen.slices)))


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(x, weight, shifted, stride, relu)``."""
    fresh, launch = problem.outputs, bind(problem, Points.of(problem), tile)

    def call(x: Tensor, weight: Tensor, shifted: Tensor | None = None, *_: Any) -> Tensor:
        made = fresh.empty()
        launch(x, weight, shifted, None, made)
        return made

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from points.candidates(Points.of(problem))


def instances() -> Iterator[Instance]:
    """Yield the kernels that ``choose`` takes, to compile ahead of time."""
    yield from products(SOURCE, ((1, 2), (2, 2), (0, 1)))


def products(entry: str, vectors: Iterable[tuple[int, int]]) -> Iterator[Instance]:
    """Yield kernels of all dtypes, channels and slices, for some strides and pixels of a thread."""
    for dtype, (stride, pixels), made, slices in product(FLOATS, vectors, (8, 16), (1, 2, 4, 8)):
        yield _product(entry, dtype, stride, Tile(pixels=pixels, made=made, slices=slices))
