"""Shared by the planners of separable convolutions: outputs of square planes, whose shapes kernels know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from nxcore_cuda import planes
from nxcore_cuda.depthwise import ceil_div
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.planes import BANKS, ROOM, STRIP, WINDOWS
from nxcore_cuda.separable import WARP, Layer, round_up

FORWARD = "sep_conv2d_planes"
FOREACH = f"foreach_{FORWARD}"


class Images(NamedTuple):
    """The images of the convolutions of one launch, whose windows may differ."""

    channels: int
    side: int

    @classmethod
    def of(cls, layer: Layer) -> Images:
        """Return the images of a layer that fits."""
        return cls(layer.x.channels, layer.x.width)


@dataclass(frozen=True)
class Outputs:
    """The work of one block that has all channels of a few images.

    Attributes
    ----------
    rows : int
        Of a thread, each of ``STRIP`` pixels.
    split : int
        Lanes that have the same pixels and share the channels.
    resident : int
        How many blocks a multiprocessor is to hold.
    loaded : int
        How far a window reaches where neighbouring pixels are loaded; they come by shuffles where it reaches
        less far.
    turn : int
        Of the ``split`` inner channels that lanes exchange, how many the code of a loop has.
    """

    rows: int
    split: int
    images: int
    resident: int
    loaded: int
    turn: int

    def threads(self, shape: Images) -> int:
        """Return how many threads a block has."""
        return shape.side**2 // (self.rows * STRIP) * self.split * self.images


TILES = {
    (16, 32): (Outputs(2, 2, 1, 2, 4, 2), Outputs(2, 2, 1, 2, 2, 2), Outputs(2, 1, 1, 2, 4, 1)),
    (32, 16): (Outputs(2, 4, 1, 4, 4, 2), Outputs(2, 4, 1, 4, 2, 2), Outputs(2, 8, 1, 2, 4, 4)),
    (64, 8): (Outputs(2, 8, 4, 2, 4, 2), Outputs(2, 8, 2, 3, 4, 2), Outputs(2, 16, 1, 4, 4, 4)),
}
"""Of a number of channels and a side, what blocks may be; the first is the usual one."""

FEW: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (16, 32): (),
    (32, 16): ((256, 2),),
    (64, 8): ((256, 2), (512, 1)),
}
"""Up to how many images of a launch another tile is the usual one, and its number."""


def code(window: tuple[int, int]) -> int:
    """Return a window's size and dilation as the kernels' templates spell them."""
    size, dilation = window
    return 10 * size + dilation


def of_layer(layer: Layer) -> int:
    """Return the code of a layer's window."""
    return code((layer.size, layer.dilation))


def fits(layer: Layer, device: torch.device) -> bool:
    """Return whether kernels know a layer's shapes, its tensors lie as required, and a device has room."""
    known = Images.of(layer) in TILES
    return known and planes.fits(layer, device, relu=True)  # which is a number to these kernels


def memory(shape: Images, tile: Outputs, size: int) -> int:
    """Return the bytes of shared memory of a block whose windows have at most ``size`` rows."""
    channels, side = shape
    warps = tile.threads(shape) // WARP
    at_once, lines = WARP // tile.split * STRIP, (side + 1) * side
    apart = (at_once - lines) % BANKS if at_once < BANKS else 0
    xs, ws = tile.images * channels * (lines + apart), channels * (channels + STRIP)
    return 4 * (xs + ws + 2 * warps * channels + channels * size * round_up(size))


def choose(layer: Layer, count: int = 1) -> Outputs:
    """Return what a block is where a launch has so many convolutions of a layer's images.

    More lanes share the pixels of fewer images where blocks are few: on an H100 up to twice as fast.
    """
    shape, images = Images.of(layer), count * layer.x.images
    return TILES[shape][next((number for most, number in FEW[shape] if images <= most), 0)]


def tiles(layer: Layer) -> Iterator[Outputs]:
    """Yield what blocks may be, the chosen one first."""
    yield from dict.fromkeys((choose(layer), *TILES[Images.of(layer)]))


def instance(entry: str, shape: Images, tile: Outputs, codes: tuple[int, ...]) -> Instance:
    """Return a kernel: of one convolution, or of several that have windows of these codes."""
    numbers = (*shape, tile.rows, tile.split, tile.images, tile.loaded, tile.turn)
    arguments = (*divmod(codes[0], 10), *numbers) if entry == FORWARD else (*numbers, *codes)
    return Instance(entry, arguments, threads=tile.threads(shape), blocks=tile.resident)


def instances(entry: str) -> Iterator[Instance]:
    """Yield the kernels that are chosen, to compile ahead of time."""
    every = tuple(map(code, WINDOWS))
    for plane, found in TILES.items():
        for number in (0, *(number for _, number in FEW[plane])):
            for codes in [every] if entry == FOREACH else [(one,) for one in every]:
                yield instance(entry, Images(*plane), found[number], codes)


def blocks(layer: Layer, tile: Outputs) -> int:
    """Return how many blocks a convolution has, each of which leaves moments."""
    return ceil_div(layer.x.images, tile.images)


def launch(layer: Layer, tile: Outputs, device: torch.device, *, relu: bool) -> Launcher:
    """Return the launch of ``(x, dw_weight, pw_weight, out, shares)``."""
    shape = Images.of(layer)
    return Launch(
        instance(FORWARD, shape, tile, (of_layer(layer),)),
        device,
        blocks(layer, tile),
        tile.threads(shape),
        memory(shape, tile, layer.size),
        pointers=5,
        layout="2i",
        values=(layer.x.images, int(relu)),
    )


def launches(
    layers: list[Layer], which: list[int], numbers: tuple[int, ...], device: torch.device, *, relu: bool
) -> list[tuple[list[int], Launcher, Outputs]]:
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
    alike: dict[tuple[Images, int], list[int]] = {}
    for i in which:
        alike.setdefault((Images.of(layers[i]), layers[i].x.images), []).append(i)
    made = []
    for (shape, images), same in alike.items():
        for at in range(0, len(same), ROOM):
            # Blocks of one window begin together, those that take longest first.
            some = sorted(same[at : at + ROOM], key=lambda i: -of_layer(layers[i]))
            layer = layers[same[0]]
            found = TILES[shape]
            tile = found[min(numbers[0], len(found) - 1)] if numbers else choose(layer, len(some))
            codes = [of_layer(layers[i]) for i in some]
            spare = (0,) * (ROOM - len(some))
            own = Launch(
                instance(FOREACH, shape, tile, tuple(map(code, WINDOWS))),
                device,
                blocks(layer, tile) * len(some),
                tile.threads(shape),
                memory(shape, tile, max(layers[i].size for i in some)),
                pointers=5 * ROOM,
                layout=f"{ROOM}i3i",
                values=(*codes, *spare, len(some), images, int(relu)),
            )
            made.append((some, own, tile))
    return made


def numbers() -> Iterator[tuple[int]]:
    """Yield the numbers of the tiles worth timing where a launch has several convolutions."""
    yield from ((i,) for i in range(max(map(len, TILES.values()))))
