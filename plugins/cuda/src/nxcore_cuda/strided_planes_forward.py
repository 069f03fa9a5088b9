"""Shared by the planners of separable convolutions: outputs of square planes at stride 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from nxcore_cuda import strided_planes
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.planes import ROOM, WINDOWS, Shape
from nxcore_cuda.separable import Layer

FORWARD = "sep_conv2d_strided_planes"
FOREACH = f"foreach_{FORWARD}"
ALL, OWN, MOST = 228 * 1024, 1024, 3  # shared memory of a multiprocessor, of a block besides; blocks there


@dataclass(frozen=True)
class Lines:
    """The work of one block that has all channels of an image, or of half of one.

    Attributes
    ----------
    band : int
        Rows of the output.
    """

    band: int
    threads: int


TILES = {(32, 32): (Lines(8, 256), Lines(16, 512)), (64, 16): (Lines(8, 256),)}
"""Of a number of channels and x's side, what blocks may be; the first is the usual one."""


def fits(layer: Layer, device: torch.device, *, relu: bool) -> bool:
    """Return whether kernels know a layer's shapes, its tensors lie as required, and a device has room."""
    return Shape.of(layer)[2:] in TILES and strided_planes.fits(layer, device, relu=relu)


def memory(shape: Shape, tile: Lines) -> int:
    """Return the bytes of shared memory of a block."""
    return 4 * shape.channels * (sum(strided_planes.pitches(shape, tile.band)) + shape.channels)


def choose(layer: Layer) -> Lines:
    """Return what a block is: the usual one."""
    return TILES[layer.x.channels, layer.x.width][0]


def tiles(layer: Layer) -> Iterator[Lines]:
    """Yield what blocks may be, the chosen one first."""
    yield from TILES[layer.x.channels, layer.x.width]


def instance(entry: str, shape: Shape, tile: Lines) -> Instance:
    """Return a kernel, of which as many blocks are to have room as have memory."""
    size, dilation, channels, side = shape
    blocks = min(ALL // (memory(shape, tile) + OWN), MOST, 768 // tile.threads)
    arguments = (size, dilation, channels, side // 2, tile.band, tile.threads)
    return Instance(entry, arguments, threads=tile.threads, blocks=blocks)


def instances(entry: str) -> Iterator[Instance]:
    """Yield the kernels that are chosen, to compile ahead of time."""
    for window, plane in product(WINDOWS, TILES):
        yield instance(entry, Shape(*window, *plane), TILES[plane][0])


def blocks(layer: Layer, tile: Lines) -> int:
    """Return how many blocks a convolution has, each of which leaves moments."""
    return layer.x.images * (layer.y.height // tile.band)


def launch(layer: Layer, tile: Lines, device: torch.device) -> Launcher:
    """Return the launch of ``(x, dw_weight, pw_weight, out, shares)``."""
    shape = Shape.of(layer)
    return Launch(
        instance(FORWARD, shape, tile),
        device,
        blocks(layer, tile),
        tile.threads,
        memory(shape, tile),
        pointers=5,
    )


def launches(
    layers: list[Layer], which: list[int], numbers: tuple[int, ...], device: torch.device
) -> list[tuple[list[int], Launcher, Lines]]:
    """Return the launches of some convolutions: the convolutions of each, and their tile.

    Parameters
    ----------
    layers : list of Layer
        Of all convolutions.
    which : list of int
        Those to compute.
    numbers : tuple of int
        Which of the tiles that there are, the last one if there are fewer; empty for those that ``choose``
        returns.
    """
    alike: dict[tuple[Shape, int], list[int]] = {}
    for i in which:
        alike.setdefault((Shape.of(layers[i]), layers[i].x.images), []).append(i)
    made = []
    for (shape, _), same in alike.items():
        found = list(tiles(layers[same[0]]))
        tile = found[min(numbers[0], len(found) - 1)] if numbers else choose(layers[same[0]])
        for at in range(0, len(same), ROOM):
            some = same[at : at + ROOM]
            own = Launch(
                instance(FOREACH, shape, tile),
                device,
                blocks(layers[same[0]], tile) * len(some),
                tile.threads,
                memory(shape, tile),
                pointers=5 * ROOM,
                layout="i",
                values=(len(some),),
            )
            made.append((some, own, tile))
    return made
