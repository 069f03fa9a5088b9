"""The launches of the pools' kernels: their arguments, and which of the kernels can be had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from nxcore.plugin import Window
from nxcore_cuda.layout import DIMS, NARROW, STRIDES, dims
from nxcore_cuda.machine import host, load, toolkit
from nxcore_cuda.machine.compile import shipped_image
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher
from nxcore_cuda.pool import Pool, Tile, cdiv

TILING = f"{DIMS}I3i"  # struct tiling
WINDOW = "12i"  # struct pool_window


def available(instance: Instance, device: torch.device) -> bool:
    """Return whether a kernel can be had: without a compiler, only what the wheel brought."""
    if toolkit.EMULATED or host.current() is not None or toolkit.nvcc():
        return True
    return shipped_image(instance, load.capability(device.index or 0)) is not None


def prefer(found: Iterable[Tile], make: Callable[[Tile], Instance], device: torch.device) -> Tile:
    """Return the first tile whose kernel can be had."""
    return next(tile for tile in found if available(make(tile), device))


def bind(
    chosen: Tile,
    found: Iterable[Tile],
    make: Callable[[Tile], Instance],
    device: torch.device,
    launch: Callable[[Tile, Instance], Launcher],
) -> Callable[..., None]:
    """Return the launch of a tile or, where that wants aligned data, of another as well.

    Parameters
    ----------
    found : iterable of Tile
        The tiles that the pool may take, best first.
    make : callable
        The kernel of a tile.
    launch : callable
        ``launch(tile, instance)``.
    """
    first = launch(chosen, make(chosen))
    if not chosen.aligned:
        return first
    other = prefer((tile for tile in found if not tile.aligned), make, device)
    return Guarded(first, launch(other, make(other)))


def tiling(pool: Pool, tile: Tile) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the grid of a launch, and the values of ``struct tiling``."""
    channels, rows, columns = pool.pieces(tile)
    count = channels * rows * columns
    images = pool.writes[0].shape[0]
    each = min((NARROW - 1) // (count * tile.lanes), images)
    sizes = (rows, columns, channels) if pool.channels_inside else (channels, rows, columns)
    grid = (cdiv(each * count * tile.lanes, tile.threads), cdiv(images, each))
    values = (each * count, images, int(pool.channels_inside), tile.lanes.bit_length() - 1)
    return grid, (*dims((each, *sizes)), *values)


def pool_window(found: Window) -> tuple[int, ...]:
    """Return the values of ``struct pool_window``."""
    pairs = (found.image, found.outputs, found.kernel, found.stride, found.padding, found.dilation)
    return tuple(n for pair in pairs for n in pair)


def launch(
    pool: Pool,
    tile: Tile,
    instance: Instance,
    device: torch.device,
    rest: str,
    values: tuple[Any, ...],
    *,
    pointers: int,
    strided: int,
    shared: int = 0,
) -> Launcher:
    """Bind a kernel whose arguments are tensors, a tiling, the strides of some of them, and the rest.

    Parameters
    ----------
    rest : str
        The layout of what follows the strides.
    values : tuple
        Of that layout.
    pointers : int
        How many tensors a call passes.
    strided : int
        The kernel takes the strides of so many tensors, those read first.
    shared : int
        Bytes of dynamic shared memory.
    """
    grid, shares = tiling(pool, tile)
    images = (*pool.reads, *pool.writes[:1])[:strided]
    strides = tuple(s for image in images for s in image.strides)
    return Launch(
        instance,
        device,
        grid,
        tile.threads,
        shared,
        pointers=pointers,
        layout=TILING + STRIDES * len(images) + rest,
        values=(*shares, *strides, *values),
    )
