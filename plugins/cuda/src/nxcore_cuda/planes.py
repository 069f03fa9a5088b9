"""Shared by the planners of separable convolutions: square planes whose shapes the kernels know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch

from nxcore_cuda.depthwise import Image, ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.separable import Layer, round_up

CHOSEN = False
"""Whether planners choose these kernels; a sweep has them in any case."""

STRIP, BANKS = 4, 32  # as in planes.cuh
ROOM = 32  # convolutions of a launch, as in foreach.cuh
MOST_BLOCKS = 528  # each of which leaves shares
BACKWARD = "sep_conv2d_planes_backward"


@dataclass(frozen=True)
class Planes:
    """The work of one block that has all channels of images, or of halves of them.

    Attributes
    ----------
    band : int
        Rows of a block: all of an image, or half.
    threads : int
    over, across : int
        Elements of the 1x1 filters' gradient that a thread adds up: outputs, channels.
    splits : int
        Lanes of a warp that share these.
    items : int
        Images or halves that a block computes, one after the other.
    """

    band: int
    threads: int
    over: int
    across: int
    splits: int
    items: int = 1

    def scratch(self, channels: int) -> int:
        """Return the floats for sums that several warps have."""
        tiles = channels // self.over * (channels // self.across)
        turns = self.threads // 32 * (32 // self.splits) // tiles
        return turns * channels * channels if turns > 1 else 0


TILES = {
    (16, 32): (Planes(16, 256, 4, 4, 8), Planes(16, 256, 8, 8, 8), Planes(32, 512, 4, 4, 8)),
    (32, 16): (
        *(Planes(16, 256, 4, 8, 8), Planes(16, 256, 8, 8, 8)),
        *(Planes(8, 256, 4, 8, 8), Planes(8, 128, 8, 8, 8)),
    ),
    (64, 8): (Planes(8, 256, 4, 8, 2), Planes(8, 128, 8, 8, 2)),
}
"""Of a number of channels and a side, what blocks may be; the first is for several convolutions at once."""


def halo(layer: Layer, tile: Planes) -> int:
    """Return how many lines beyond its own a block holds."""
    return layer.size // 2 if tile.band < layer.x.height and layer.dilation == 1 else 0


def memory(layer: Layer, tile: Planes) -> int:
    """Return the bytes of shared memory of a block."""
    channels, side = layer.x.channels, layer.x.width
    pitch = round_up((tile.band + halo(layer, tile)) * side, BANKS) + STRIP
    return 4 * (3 * channels * pitch + channels * channels + tile.scratch(channels))


def _dense(image: Image) -> bool:
    """Return whether the rows, planes and images follow each other in memory."""
    plane = image.height * image.width
    wanted = (image.channels * plane, plane, image.width, 1)
    return all(have in (want, 0) for have, want in zip(image.steps, wanted, strict=True))


def fits(layer: Layer, *, relu: bool) -> bool:
    """Return whether kernels know the shapes of a layer, and its tensors lie as they ask."""
    x, y, size = layer.x, layer.y, layer.size
    reach = (size - 1) * layer.dilation // 2
    shape = x.height == x.width == y.height == y.width and x.channels == y.channels
    filters = (size * size if x.channels > 1 else 0, size, 1)
    return (
        (shape and relu and layer.itemsize == 4 and layer.stride == 1)
        and (size in (3, 5) and (x.channels, x.width) in TILES and layer.pads == (reach, reach))
        and all(_dense(image) for image in (x, y, layer.x_grad))
        and (layer.filter_steps == filters and layer.point_steps == (x.channels, 1))
    )


def tiles(layer: Layer) -> Iterator[Planes]:
    """Yield what blocks may be: their threads' parts of a plane don't cross from even to odd rows."""
    side = layer.x.width
    for tile in TILES[layer.x.channels, side]:
        rows = tile.band * layer.x.channels * (side // STRIP) // tile.threads
        part = side // 2 if layer.dilation == 2 else tile.band
        if rows <= part:
            yield tile


def choose(layer: Layer) -> Planes:
    """Return what a block is where a launch has one convolution: the smallest that there is."""
    return min(tiles(layer), key=lambda tile: tile.band)


def arguments(layer: Layer, tile: Planes) -> tuple[int, ...]:
    """Return the arguments of a kernel's template."""
    return (
        *(layer.size, layer.dilation, layer.x.channels, layer.x.width, tile.band, tile.threads),
        *(tile.over, tile.across, tile.splits),
    )


def instance(entry: str, layer: Layer, tile: Planes) -> Instance:
    """Return a kernel; of the smaller ones two blocks are to have room."""
    blocks = 2 if memory(layer, tile) <= 113 * 1024 else 1
    return Instance(entry, arguments(layer, tile), threads=tile.threads, blocks=blocks)


def items(layer: Layer, tile: Planes) -> int:
    """Return how many images or halves there are."""
    return layer.x.images * (layer.x.height // tile.band)


def rows(layer: Layer, tile: Planes) -> int:
    """Return how many blocks a convolution has, which is how many shares they leave."""
    return min(ceil_div(items(layer, tile), tile.items), MOST_BLOCKS)


def launches(
    layers: list[Layer], which: list[int], numbers: tuple[int, int], device: torch.device
) -> list[tuple[list[int], Launcher, Planes]]:
    """Return the launches of some convolutions: the convolutions of each, and their tile.

    Parameters
    ----------
    layers : list of Layer
        Of all convolutions.
    which : list of int
        Those to compute.
    numbers : (int, int)
        Which of the tiles that there are, the last one if there are fewer, and its ``items``.
    device : torch.device
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for i in which:
        shape = (layers[i].size, layers[i].dilation, layers[i].x.channels, layers[i].x.images)
        alike.setdefault(shape, []).append(i)
    made = []
    for same in alike.values():
        layer, found = layers[same[0]], list(tiles(layers[same[0]]))
        tile = replace(found[min(numbers[0], len(found) - 1)], items=numbers[1])
        for at in range(0, len(same), ROOM):
            some = same[at : at + ROOM]
            launch = Launch(
                instance(f"foreach_{BACKWARD}", layer, tile),
                device,
                rows(layer, tile) * len(some),
                tile.threads,
                memory(layer, tile),
                pointers=6 * ROOM,
                layout="2i",
                values=(len(some), items(layer, tile)),
            )
            made.append((some, launch, tile))
    return made


def numbers() -> Iterator[tuple[int, int]]:
    """Yield the numbers of tiles and of items worth timing where a launch has several convolutions."""
    yield from product(range(max(map(len, TILES.values()))), (1, 2, 4))
