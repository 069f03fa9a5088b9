"""Shared by the planners of separable convolutions: square planes whose shapes the kernels know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import torch

from nxcore_cuda import separable
from nxcore_cuda.depthwise import FILL, Image, ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.separable import Layer, round_up

STRIP, BANKS = 4, 32  # as in planes.cuh
ROOM = 32  # convolutions of a launch, as in foreach.cuh
MOST_BLOCKS = 528  # each of which leaves shares
FULL = 15 * FILL // 8  # blocks that fill a large GPU, of which two have room on a multiprocessor
HALF = 113 * 1024  # bytes of shared memory of a block, of which two have room on a multiprocessor
BEGIN = 0.25  # of the time of an item: what a block takes to begin, whose copies nothing hides
BACKWARD = "sep_conv2d_planes_backward"


class Shape(NamedTuple):
    """A convolution, as far as a kernel knows it."""

    size: int
    dilation: int
    channels: int
    side: int

    @classmethod
    def of(cls, layer: Layer) -> Shape:
        """Return the shape of a layer that fits."""
        return cls(layer.size, layer.dilation, layer.x.channels, layer.x.width)


@dataclass(frozen=True)
class Planes:
    """The work of one block that has all channels of images, or of halves or quarters of them.

    Attributes
    ----------
    band : int
        Rows of a block: all of an image, or a part.
    over, across : int
        Elements of the 1x1 filters' gradient that a thread adds up: outputs, channels.
    splits : int
        Lanes of a warp that share these.
    items : int
        Images, or parts of them, that a block computes, one after the other.
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
    (36, 32): (Planes(8, 576, 6, 3, 8),),
    (72, 16): (Planes(8, 576, 6, 3, 2),),
    (144, 8): (Planes(8, 576, 6, 6, 1),),
}
"""Of a number of channels and a side, what blocks may be; the first is the usual one."""
WINDOWS = ((3, 1), (5, 1), (3, 2), (5, 2))  # size, dilation


def halo(shape: Shape, band: int) -> int:
    """Return how many lines beyond its own a block holds."""
    bands = shape.side // band // shape.dilation  # of rows that see each other
    return shape.size // 2 * min(max(bands - 1, 0), 2)


def memory(shape: Shape, tile: Planes) -> int:
    """Return the bytes of shared memory of a block."""
    channels = shape.channels
    pitch = round_up((tile.band + halo(shape, tile.band)) * shape.side, BANKS) + STRIP
    return 4 * (3 * channels * pitch + channels * channels + tile.scratch(channels))


def _dense(image: Image) -> bool:
    """Return whether the rows, planes and images follow each other in memory."""
    plane = image.height * image.width
    wanted = (image.channels * plane, plane, image.width, 1)
    return all(have in (want, 0) for have, want in zip(image.steps, wanted, strict=True))


def fits(layer: Layer, device: torch.device, *, relu: bool) -> bool:
    """Return whether kernels know a layer's shapes, its tensors lie as required, and a device has room."""
    x, y, size = layer.x, layer.y, layer.size
    reach = (size - 1) * layer.dilation // 2
    shape = x.height == x.width == y.height == y.width and x.channels == y.channels
    filters = (size * size if x.channels > 1 else 0, size, 1)
    return (
        (shape and relu and layer.itemsize == 4 and layer.stride == 1)
        and ((size, layer.dilation) in WINDOWS and (x.channels, x.width) in TILES)
        and (layer.pads == (reach, reach) and separable.memory(device) >= separable.MORE)
        and all(_dense(image) for image in (x, y, layer.x_grad))
        and (layer.filter_steps == filters and layer.point_steps == (x.channels, 1))
    )


def tiles(shape: Shape) -> Iterator[Planes]:
    """Yield what blocks may be: their threads' parts of a plane don't cross from even to odd rows."""
    for tile in TILES[shape.channels, shape.side]:
        rows = tile.band * shape.channels * (shape.side // STRIP) // tile.threads
        part = shape.side // 2 if shape.dilation == 2 else tile.band
        if rows <= part:
            yield tile


def halves(shape: Shape) -> Planes | None:
    """Return the first tile of half an image where the usual one has a whole image, if there is one."""
    usual, *others = tiles(shape)
    found = (tile for tile in others if tile.band < usual.band == shape.side)
    return next(found, None)


def choose(layer: Layer, count: int = 1) -> Planes:
    """Return what a block is where a launch has so many convolutions of a layer's shape.

    It is the usual one, except halves of images where whole ones are few, if a window sees more than the next
    pixels: 1.04 to 1.08 times as fast on an H100. A block computes two items where enough blocks are left:
    up to 1.04 times as fast. One that has a multiprocessor to itself computes as many as `shared_out` says.
    """
    shape = Shape.of(layer)
    usual, half = next(tiles(shape)), halves(shape)
    if memory(shape, usual) > HALF:
        return replace(usual, items=shared_out(items(layer, usual), count))
    far = (shape.size - 1) * shape.dilation > 2
    if half and far and 2 * count * layer.x.images <= FILL:
        return half
    return replace(usual, items=2 if count * items(layer, usual) >= 2 * FULL else 1)


def shared_out(work: int, count: int, resident: int = 1) -> int:
    """Return how many items a block computes, of which a launch has ``count`` times ``work``.

    Blocks of one wave, of which ``resident`` have room on a multiprocessor, end together: the number of
    blocks is that for which all waves take least, and the lowest of these, since each block leaves shares.
    """
    slots = FILL * resident

    def cost(blocks: int) -> float:
        return ceil_div(blocks * count, slots) * (ceil_div(work, blocks) + BEGIN)

    return ceil_div(work, min(range(1, min(work, MOST_BLOCKS) + 1), key=cost, default=1))


def arguments(shape: Shape, tile: Planes) -> tuple[int, ...]:
    """Return the arguments of a kernel's template."""
    return (*shape, tile.band, tile.threads, tile.over, tile.across, tile.splits)


def instance(entry: str, shape: Shape, tile: Planes) -> Instance:
    """Return a kernel; of the smaller ones two blocks are to have room."""
    blocks = 2 if memory(shape, tile) <= HALF else 1
    return Instance(entry, arguments(shape, tile), threads=tile.threads, blocks=blocks)


def instances(entry: str) -> Iterator[Instance]:
    """Yield the kernels that are chosen, to compile ahead of time."""
    for window, plane in product(WINDOWS, TILES):
        shape = Shape(*window, *plane)
        for tile in (next(tiles(shape)), halves(shape)):
            if tile is not None:
                yield instance(entry, shape, tile)


def items(layer: Layer, tile: Planes) -> int:
    """Return how many images, or parts of them, there are."""
    return layer.x.images * (layer.x.height // tile.band)


def rows(layer: Layer, tile: Planes) -> int:
    """Return how many blocks a convolution has, which is how many shares they leave."""
    return min(ceil_div(items(layer, tile), tile.items), MOST_BLOCKS)


def launches(
    layers: list[Layer], which: list[int], numbers: tuple[int, ...], device: torch.device
) -> list[tuple[list[int], Launcher, Planes]]:
    """Return the launches of some convolutions: the convolutions of each, and their tile.

    Parameters
    ----------
    layers : list of Layer
        Of all convolutions.
    which : list of int
        Those to compute.
    numbers : tuple of int
        Which of the tiles that there are, the last one if there are fewer, and its ``items``; empty for those
        that ``choose`` returns.
    """
    alike: dict[tuple[Shape, int], list[int]] = {}
    for i in which:
        alike.setdefault((Shape.of(layers[i]), layers[i].x.images), []).append(i)
    made = []
    for (shape, _), same in alike.items():
        found = list(tiles(shape))
        for at in range(0, len(same), ROOM):
            some, layer = same[at : at + ROOM], layers[same[0]]
            if numbers:
                tile = replace(found[min(numbers[0], len(found) - 1)], items=numbers[1])
            else:
                tile = choose(layer, len(some))
            launch = Launch(
                instance(f"foreach_{BACKWARD}", shape, tile),
                device,
                rows(layer, tile) * len(some),
                tile.threads,
                memory(shape, tile),
                pointers=6 * ROOM,
                layout="2i",
                values=(len(some), items(layer, tile)),
            )
            made.append((some, launch, tile))
    return made


def numbers() -> Iterator[tuple[int, int]]:
    """Yield the numbers of tiles and of items worth timing where a launch has several convolutions."""
    yield from product(range(max(map(len, TILES.values()))), (1, 2, 4))
