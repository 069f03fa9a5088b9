"""Shared by the planners of separable convolutions: outputs of parts of planes, whose shapes kernels know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from nxcore_cuda import planes
from nxcore_cuda.depthwise import ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.planes import BANKS, HALF, MOST_BLOCKS, ROOM, STRIP, WINDOWS, Shape, shared_out
from nxcore_cuda.separable import Layer, round_up

FORWARD = "sep_conv2d_parts"
FOREACH = f"foreach_{FORWARD}"


@dataclass(frozen=True)
class Part:
    """The work of one block that has all channels of an image, or of a part of one.

    Attributes
    ----------
    band : int
        Rows of a block: all of an image, half or a quarter of them.
    threads : int
    each : int
        Outputs' channels of a thread.
    many : int
        Places of a thread, each of ``STRIP`` pixels.
    """

    band: int
    threads: int
    each: int
    many: int


TILES = {
    (36, 32): (Part(8, 288, 4, 2),),
    (72, 16): (Part(8, 288, 8, 1),),
    (144, 8): (Part(8, 576, 4, 1),),
}
"""Of a number of channels and a side, what blocks may be; the first is the usual one."""


def fits(layer: Layer, device: torch.device, *, relu: bool) -> bool:
    """Return whether kernels know a layer's shapes, its tensors lie as required, and a device has room."""
    return Shape.of(layer)[2:] in TILES and planes.fits(layer, device, relu=relu)


def memory(shape: Shape, tile: Part) -> int:
    """Return the bytes of shared memory of a block."""
    channels, own = shape.channels, tile.band * shape.side + STRIP
    held = round_up((tile.band + planes.halo(shape, tile.band)) * shape.side, BANKS) + STRIP
    return 4 * channels * (held + own + channels + 1)


def resident(shape: Shape, tile: Part) -> int:
    """Return how many blocks have room on a multiprocessor."""
    return 2 if tile.threads <= 288 and memory(shape, tile) <= HALF else 1


def choose(layer: Layer) -> Part:
    """Return what a block is: the usual one."""
    return TILES[layer.x.channels, layer.x.width][0]


def tiles(layer: Layer) -> Iterator[Part]:
    """Yield what blocks may be, the chosen one first."""
    yield from TILES[layer.x.channels, layer.x.width]


def instance(entry: str, shape: Shape, tile: Part) -> Instance:
    """Return a kernel."""
    arguments = (*shape, tile.band, tile.threads, tile.each, tile.many)
    return Instance(entry, arguments, threads=tile.threads, blocks=resident(shape, tile))


def instances(entry: str) -> Iterator[Instance]:
    """Yield the kernels that are chosen, to compile ahead of time."""
    for window, plane in product(WINDOWS, TILES):
        yield instance(entry, Shape(*window, *plane), TILES[plane][0])


def blocks(layer: Layer, tile: Part) -> int:
    """Return how many parts of images a convolution has, each of which leaves moments."""
    return layer.x.images * (layer.x.height // tile.band)


def _rows(layer: Layer, tile: Part, count: int) -> int:
    """Return how many blocks a convolution of so many has."""
    items = blocks(layer, tile)
    return min(ceil_div(items, shared_out(items, count, resident(Shape.of(layer), tile))), MOST_BLOCKS)


def launch(layer: Layer, tile: Part, device: torch.device) -> Launcher:
    """Return the launch of ``(x, dw_weight, pw_weight, out, shares)``."""
    shape = Shape.of(layer)
    return Launch(
        instance(FORWARD, shape, tile),
        device,
        _rows(layer, tile, 1),
        tile.threads,
        memory(shape, tile),
        pointers=5,
        layout="i",
        values=(blocks(layer, tile),),
    )


def launches(
    layers: list[Layer], which: list[int], numbers: tuple[int, ...], device: torch.device
) -> list[tuple[list[int], Launcher, Part]]:
    """Return the launches of some convolutions, as ``strided_planes_forward.launches`` does."""
    alike: dict[tuple[Shape, int], list[int]] = {}
    for i in which:
        alike.setdefault((Shape.of(layers[i]), layers[i].x.images), []).append(i)
    made = []
    for (shape, _), same in alike.items():
        found = list(tiles(layers[same[0]]))
        tile = found[min(numbers[0], len(found) - 1)] if numbers else choose(layers[same[0]])
        for at in range(0, len(same), ROOM):
            some, layer = same[at : at + ROOM], layers[same[0]]
            own = Launch(
                instance(FOREACH, shape, tile),
                device,
                _rows(layer, tile, len(some)) * len(some),
                tile.threads,
                memory(shape, tile),
                pointers=5 * ROOM,
                layout="2i",
                values=(len(some), blocks(layer, tile)),
            )
            made.append((some, own, tile))
    return made
