"""Shared by the planners of separable convolutions' gradients: square planes at stride 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch

from nxcore_cuda import planes, separable
from nxcore_cuda.depthwise import Image, ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.planes import BANKS, MOST_BLOCKS, ROOM, STRIP, WINDOWS, Planes, Shape
from nxcore_cuda.separable import Layer, round_up

BACKWARD = "sep_conv2d_strided_planes_backward"
FULL, ALL = 113 * 1024, 227 * 1024
"""Bytes of shared memory of a block, of which two have room on a multiprocessor, or one."""

FEW = 9  # outputs whose points a block may read from global memory

TILES = {
    (32, 32): (Planes(8, 256, 4, 8, 8), Planes(16, 512, 4, 4, 8), Planes(16, 512, 4, 8, 8)),
    (64, 16): (Planes(8, 256, 4, 8, 2),),
    (72, 32): (Planes(4, 576, 6, 3, 2),),
    (144, 16): (Planes(4, 576, 6, 6, 1),),
}
"""Of a number of channels and x's side, what blocks may be; ``band`` is in rows of the output."""


def pitches(shape: Shape, band: int) -> tuple[int, int]:
    """Return the floats of a plane of x in shared memory, and of one of what has the output's size."""
    size, dilation, _, side = shape
    pad, fine, pieces = size // 2, 2 // dilation, side // 2 // band
    before, after = (
        pad // fine,
        (fine - 1 + pad) // fine,
    )  # lines of the output, that pixels see beyond their own
    x_more = (0, pad, pad + pad + 1 - fine)[min(pieces, 3) - 1]
    more = (0, after, before + after)[min(pieces, 3) - 1]
    x_pitch = (fine * band + x_more) * side + (STRIP if side < BANKS else 0)
    return x_pitch, round_up((band + more) * side // 2, 16) + STRIP


def _whole(shape: Shape, tile: Planes) -> int:
    """Return the bytes of shared memory of a block that has all points there."""
    channels, (x_pitch, pitch) = shape.channels, pitches(shape, tile.band)
    return 4 * (channels * (x_pitch + 2 * pitch + channels) + tile.scratch(channels))


def left(shape: Shape, tile: Planes) -> int:
    """Return of how many outputs the points stay in global memory, that two blocks may have room, or one."""
    whole = _whole(shape, tile)
    rows = (ceil_div(max(whole - most, 0), 4 * shape.channels) for most in (FULL, ALL))
    return next((few for few in rows if few <= FEW), 0)


def memory(shape: Shape, tile: Planes) -> int:
    """Return the bytes of shared memory of a block."""
    return _whole(shape, tile) - 4 * shape.channels * left(shape, tile)


def fits(layer: Layer, device: torch.device, *, relu: bool) -> bool:
    """Return whether kernels know a layer's shapes, its tensors lie as required, and a device has room."""
    x, y, size = layer.x, layer.y, layer.size
    reach = (size - 1) * layer.dilation // 2
    shape = x.height == x.width == 2 * y.height == 2 * y.width and x.channels == y.channels
    filters = (size * size if x.channels > 1 else 0, size, 1)
    return (
        (shape and relu and layer.itemsize == 4 and layer.stride == 2)
        and ((size, layer.dilation) in WINDOWS and (x.channels, x.width) in TILES)
        and (layer.pads == (reach, reach) and separable.memory(device) >= separable.MORE)
        and all(_dense(image) for image in (x, y, layer.x_grad))
        and (layer.filter_steps == filters and layer.point_steps == (x.channels, 1))
    )


def _dense(image: Image) -> bool:
    """Return whether the rows, planes and images follow each other in memory."""
    plane = image.height * image.width
    wanted = (image.channels * plane, plane, image.width, 1)
    return all(have in (want, 0) for have, want in zip(image.steps, wanted, strict=True))


def tiles(shape: Shape) -> Iterator[Planes]:
    """Yield what blocks may be, the usual one first."""
    yield from TILES[shape.channels, shape.side]


def choose(layer: Layer, count: int = 1) -> Planes:
    """Return what a block is where a launch has so many convolutions of a layer's shape: the usual one.

    One that has a multiprocessor to itself computes as many items as ``planes.shared_out`` says.
    """
    shape = Shape.of(layer)
    usual = next(tiles(shape))
    if usual.threads <= 512 and memory(shape, usual) <= FULL:
        return usual
    return replace(usual, items=planes.shared_out(items(layer, usual), count))


def instance(entry: str, shape: Shape, tile: Planes) -> Instance:
    """Return a kernel; of the smaller ones two blocks are to have room."""
    of_output = shape._replace(side=shape.side // 2)
    arguments = (*planes.arguments(of_output, tile), left(shape, tile))
    blocks = 2 if tile.threads <= 256 and memory(shape, tile) <= FULL else 1
    return Instance(entry, arguments, threads=tile.threads, blocks=blocks)


def instances(entry: str) -> Iterator[Instance]:
    """Yield the kernels that are chosen, to compile ahead of time."""
    for window, plane in product(WINDOWS, TILES):
        shape = Shape(*window, *plane)
        yield instance(entry, shape, next(tiles(shape)))


def items(layer: Layer, tile: Planes) -> int:
    """Return how many images, or parts of them, there are."""
    return layer.x.images * (layer.y.height // tile.band)


def rows(layer: Layer, tile: Planes) -> int:
    """Return how many blocks a convolution has, which is how many shares they leave."""
    return min(ceil_div(items(layer, tile), tile.items), MOST_BLOCKS)


def launches(
    layers: list[Layer], which: list[int], numbers: tuple[int, ...], device: torch.device
) -> list[tuple[list[int], Launcher, Planes]]:
    """Return the launches of some convolutions, as ``planes.launches`` does."""
    alike: dict[tuple[Shape, int], list[int]] = {}
    for i in which:
        alike.setdefault((Shape.of(layers[i]), layers[i].x.images), []).append(i)
    made = []
    for (shape, _), same in alike.items():
        found = list(tiles(shape))
        for at in range(0, len(same), ROOM):
            some, layer = same[at : at + ROOM], layers[same[0]]
            tile = choose(layer, len(some))
            if numbers:
                tile = replace(found[min(numbers[0], len(found) - 1)], items=numbers[1])
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
