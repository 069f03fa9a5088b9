"""Shared by the planners of separable convolutions: outputs of parts of planes, whose shapes kernels know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from nxcore_cuda import planes, strided_planes
from nxcore_cuda.depthwise import ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.planes import BANKS, HALF, MOST_BLOCKS, ROOM, STRIP, WINDOWS, Shape, shared_out
from nxcore_cuda.separable import Layer, round_up

ENTRIES = {1: "sep_conv2d_parts", 2: "sep_conv2d_strided_parts"}  # by stride


@dataclass(frozen=True)
class Part:
    """The work of one block that has all channels of an image, or of a part of one.

    Attributes
    ----------
    band : int
        Rows of a block: all of an image, half or a quarter of them.
    each : int
        Outputs' channels of a thread.
    many : int
        Places of a thread, each of ``STRIP`` pixels.
    """

    band: int
    threads: int
    each: int
    many: int
    stride: int = 1


TILES = {
    (36, 32, 1): (Part(8, 288, 4, 2),),
    (72, 16, 1): (Part(8, 288, 8, 1),),
    (144, 8, 1): (Part(8, 576, 4, 1),),
    (72, 32, 2): (Part(4, 576, 2, 1, 2),),
    (144, 16, 2): (Part(4, 576, 2, 1, 2),),
}
"""Of a number of channels, x's side and a stride, what blocks may be; the first is the usual one. ``band`` is
in rows of the output."""


def fits(layer: Layer, device: torch.device, *, relu: bool) -> bool:
    """Return whether kernels know a layer's shapes, its tensors lie as required, and a device has room."""
    planner = strided_planes if layer.stride == 2 else planes
    return _plane(layer) in TILES and planner.fits(layer, device, relu=relu)


def _plane(layer: Layer) -> tuple[int, int, int]:
    return layer.x.channels, layer.x.width, layer.stride


def memory(shape: Shape, tile: Part) -> int:
    """Return the bytes of shared memory of a block."""
    channels, own = shape.channels, tile.band * shape.side // tile.stride + STRIP
    held = round_up((tile.band + planes.halo(shape, tile.band)) * shape.side, BANKS) + STRIP
    if tile.stride == 2:
        held, _ = strided_planes.pitches(shape, tile.band)
    return 4 * channels * (held + own + channels + 1)


def resident(shape: Shape, tile: Part) -> int:
    """Return how many blocks have room on a multiprocessor."""
    return 2 if tile.threads <= 288 and memory(shape, tile) <= HALF else 1


def choose(layer: Layer) -> Part:
    """Return what a block is: the usual one."""
    return TILES[_plane(layer)][0]


def tiles(layer: Layer) -> Iterator[Part]:
    """Yield what blocks may be, the chosen one first."""
    yield from TILES[_plane(layer)]


def instance(prefix: str, shape: Shape, tile: Part) -> Instance:
    """Return a kernel: of one convolution, or of several where the prefix of its name is ``foreach_``."""
    of_output = shape._replace(side=shape.side // tile.stride)
    arguments = (*of_output, tile.band, tile.threads, tile.each, tile.many)
    entry = prefix + ENTRIES[tile.stride]
    return Instance(entry, arguments, threads=tile.threads, blocks=resident(shape, tile))


def instances(prefix: str) -> Iterator[Instance]:
    """Yield the kernels that are chosen, to compile ahead of time."""
    for window, (plane, found) in product(WINDOWS, TILES.items()):
        yield instance(prefix, Shape(*window, *plane[:2]), found[0])


def blocks(layer: Layer, tile: Part) -> int:
    """Return how many parts of images a convolution has, each of which leaves moments."""
    return layer.x.images * (layer.y.height // tile.band)


def _rows(layer: Layer, tile: Part, count: int) -> int:
    """Return how many blocks a convolution of so many has."""
    items = blocks(layer, tile)
    return min(ceil_div(items, shared_out(items, count, resident(Shape.of(layer), tile))), MOST_BLOCKS)


def launch(layer: Layer, tile: Part, device: torch.device) -> Launcher:
    """Return the launch of ``(x, dw_weight, pw_weight, out, shares)``."""
    shape = Shape.of(layer)
    return Launch(
        instance("", shape, tile),
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
    alike: dict[tuple[Shape, int, int], list[int]] = {}
    for i in which:
        alike.setdefault((Shape.of(layers[i]), layers[i].stride, layers[i].x.images), []).append(i)
    made = []
    for (shape, *_), same in alike.items():
        found = list(tiles(layers[same[0]]))
        tile = found[min(numbers[0], len(found) - 1)] if numbers else choose(layers[same[0]])
        for at in range(0, len(same), ROOM):
            some, layer = same[at : at + ROOM], layers[same[0]]
            own = Launch(
                instance("foreach_", shape, tile),
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
