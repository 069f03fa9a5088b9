"""Shared by the planners of sep_conv2d and of its gradients: bands of images in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nxcore.plugin import Problem, TensorMeta, Window
from nxcore_cuda.depthwise import FILL, STEPS, Image, ceil_div, divisor, filter_steps

STRIP = 4  # as in separable.cuh
WARP = 32
BANKS = 32
BAND = f"{3 * STEPS}5q28i14I"  # struct Band
MOST, MORE = 62 * 1024, 110 * 1024
"""Bytes of shared memory: that a block has on every device, and of which two have room on a large one.

Beside them a block has 1.5 KB for moments."""

ENOUGH = 3 * FILL // 2  # blocks that fill a large GPU


@dataclass(frozen=True)
class Tile:
    """The work of one block, and its number of threads.

    Attributes
    ----------
    band : int
        Rows of outputs.
    chunk : int
        Channels: that are in shared memory at once forward, and of a block backward.
    memory : int
        Bytes of shared memory that a block may have.
    """

    band: int
    chunk: int
    threads: int = 256
    memory: int = MOST


@dataclass(frozen=True)
class Layer:
    """A call's shapes.

    Attributes
    ----------
    x, y : Image
        The image, and the output or its gradient.
    x_grad : Image
        The image's gradient; the image where there is none.
    filter_steps, point_steps : tuple of int
        Strides of the weights: channel, row, column; channel out, channel in.
    size, stride, dilation : int
        Of the window.
    pads : (int, int)
        Above and to the left.
    """

    x: Image
    y: Image
    x_grad: Image
    filter_steps: tuple[int, int, int]
    point_steps: tuple[int, int]
    size: int
    stride: int
    dilation: int
    pads: tuple[int, int]
    itemsize: int

    @classmethod
    def of(cls, problem: Problem, y: TensorMeta, x_grad: TensorMeta | None = None) -> Layer:
        """Describe a call whose window has a kernel."""
        x, filters, points = problem["x"], problem["dw_weight"], problem["pw_weight"]
        return cls.seen(x, filters, points, window(problem), y, x_grad)

    @classmethod
    def seen(
        cls,
        x: TensorMeta,
        filters: TensorMeta,
        points: TensorMeta,
        seen: Window,
        y: TensorMeta,
        x_grad: TensorMeta | None = None,
    ) -> Layer:
        """Describe a convolution by its tensors, whose window has a kernel."""
        size, stride, dilation = square(seen) or (0, 0, 0)
        made, inner = (0 if n == 1 else s for n, s in zip(points.shape[:2], points.strides, strict=False))
        return cls(
            Image.of(x),
            Image.of(y),
            Image.of(x_grad or x),
            filter_steps(filters),
            (made, inner),
            size,
            stride,
            dilation,
            seen.padding,
            x.element_size(),
        )

    @property
    def reach(self) -> int:
        """From a window's first tap to its last."""
        return (self.size - 1) * self.dilation

    def bands(self, rows: int) -> int:
        """Return how many bands of ``rows`` outputs an image has."""
        return ceil_div(self.y.height, rows)


def window(problem: Problem) -> Window:
    """Return the convolution's window."""
    x, (height, width) = problem["x"], problem["dw_weight"].shape[-2:]
    return Window.of_convolution(
        x.shape, (height, width), problem["stride"], problem["padding"], problem["dilation"]
    )


def flags(problem: Problem) -> tuple[bool, ...]:
    """Return which results are normalised."""
    normed = problem["normed"]
    return (True,) * len(problem["xs"]) if normed is None else normed


def windows(problem: Problem) -> list[Window]:
    """Return the window of each convolution."""
    names = ("xs", "dw_weights", "strides", "paddings", "dilations")
    return [
        Window.of_convolution(x.shape, tuple(filters.shape[-2:]), *numbers)
        for x, filters, *numbers in zip(*(problem[name] for name in names), strict=True)
    ]


def layers(problem: Problem) -> list[Layer]:
    """Return the shapes of each convolution; of a backward call, with its gradients."""
    count, back = len(problem["xs"]), problem.op.endswith("_backward")
    x_grads: Sequence[Any] = problem.outputs[0] if back else (None,) * count
    given = (problem["xs"], problem["dw_weights"], problem["pw_weights"], windows(problem))
    made = gradients(problem) if back else problem.outputs[0]
    return [Layer.seen(*one) for one in zip(*given, made, x_grads, strict=True)]


def gradients(problem: Problem) -> list[TensorMeta]:
    """Return the gradient of each convolution's own result: behind a norm, it has that norm's layout."""
    ys = iter(problem["ys"])
    return [next(ys) if norm else grad for norm, grad in zip(flags(problem), problem["grads"], strict=True)]


def square(seen: Window) -> tuple[int, int, int] | None:
    """Return filter size, stride and dilation where there are kernels for them, the same both ways."""
    pairs = (seen.kernel, seen.stride, seen.dilation)
    if any(down != across for down, across in pairs):
        return None
    k, s, d = (down for down, _ in pairs)
    d = 1 if k == 1 else d
    return (k, s, d) if k in (1, 3, 5, 7) and s in (1, 2) and d in (1, 2) else None


def round_up(n: int, to: int = STRIP) -> int:
    """Return the next multiple."""
    return ceil_div(n, to) * to


def apart(n: int) -> int:
    """Return a pitch of at least ``n`` floats, of which neighbouring rows begin in other banks."""
    return round_up(max(n - STRIP, 0), BANKS) + STRIP


def lane_count(strips: int) -> int:
    """Return how many neighbouring threads share a channel that has so many strips."""
    return min(1 << (strips - 1).bit_length(), WARP)


@dataclass(frozen=True)
class Floats:
    """How a block's shared memory is laid out, in floats: rows and pitches as in ``struct Band``."""

    x_rows: int
    x_pitch: int
    u_pitch: int
    w_pitch: int
    y_pitch: int
    z_rows: int
    z_pitch: int
    tile: int
    total: int
    moved: int

    @property
    def bytes(self) -> int:
        """Bytes of shared memory of a launch."""
        return 4 * self.total


def _fitting(tile: Tile, floats: int, each: int, channels: int) -> int:
    """Return how many output channels of ``each`` floats fit beside others, a few even where none does."""
    room = (tile.memory // 4 - floats) // each
    return min(round_up(channels), max(room // STRIP * STRIP, STRIP))


def _row(strips: int, stride: int, reach: int) -> int:
    """Return the floats that a row of strips sees."""
    return (strips - 1) * STRIP * stride + round_up((STRIP - 1) * stride + reach + 1)


def forward(layer: Layer, tile: Tile) -> Floats:
    """Lay out the shared memory of a forward pass."""
    rows, channels = min(tile.band, layer.y.height), layer.x.channels
    x_rows = (rows - 1) * layer.stride + layer.reach + 1
    x_pitch = max(
        _row(ceil_div(layer.y.width, STRIP), layer.stride, layer.reach),
        round_up(layer.pads[1] + layer.x.width),
    )
    u_pitch = round_up(rows * layer.y.width)
    planes = tile.chunk * x_rows * x_pitch
    total = planes + channels * u_pitch + round_up(tile.chunk * layer.size**2)
    w_pitch = _fitting(tile, total, channels, layer.y.channels)
    moved = channels * (x_rows * x_pitch + u_pitch + layer.y.channels)
    return Floats(x_rows, x_pitch, u_pitch, w_pitch, 0, 0, 0, w_pitch, total + channels * w_pitch, moved)


def backward(layer: Layer, tile: Tile) -> Floats:
    """Lay out the shared memory of a backward pass."""
    one = forward(layer, tile)
    rows, stride, height = min(tile.band, layer.y.height), layer.stride, layer.x.height
    count = layer.bands(rows)
    made = max(rows * stride, height - (count - 1) * rows * stride)
    z_rows = made + layer.reach
    y_rows = min((z_rows - 1) // stride + 1, layer.y.height)
    z_pitch = _row(ceil_div(layer.x.width, STRIP), 1, layer.reach)
    u_pitch, y_pitch = apart(round_up(rows * layer.y.width)), apart(round_up(y_rows * layer.y.width))
    w_pitch = round_up(tile.chunk)
    planes = tile.chunk * (one.x_rows * one.x_pitch + z_rows * z_pitch) + w_pitch * u_pitch
    total, each = planes + round_up(tile.chunk * layer.size**2), y_pitch + w_pitch
    outputs = _fitting(tile, total, each, layer.y.channels)
    return Floats(
        *(one.x_rows, one.x_pitch, u_pitch, w_pitch, y_pitch, z_rows, z_pitch, outputs),
        total=total + outputs * each,
        moved=planes * ceil_div(layer.y.channels, outputs) + layer.y.channels * each,
    )


def values(layer: Layer, tile: Tile, floats: Floats, *, relu: bool, wanted: int = 0) -> tuple[int, ...]:
    """Return the values of a kernel's ``Band``."""
    x, y, width = layer.x, layer.y, 16 // layer.itemsize
    strips, z_strips = ceil_div(y.width, STRIP), ceil_div(x.width, STRIP)
    bands = layer.bands(tile.band)
    x_vectors, y_vectors = (
        image.width // width if image.steps[3] == 1 and image.divides(width) else 0 for image in (x, y)
    )
    in_vectors = layer.x_grad.steps[3] == 1 and layer.x_grad.divides(STRIP)
    tiles = ceil_div(min(tile.chunk, x.channels), STRIP) * ceil_div(floats.tile, STRIP)
    splits = next(s for s in (16, 8, 4, 2, 1) if s == 1 or tiles * s <= tile.threads)
    return (
        *(*x.steps, *y.steps, *layer.x_grad.steps, *layer.filter_steps, *layer.point_steps),
        *(x.channels, y.channels, x.height, x.width, y.height, y.width, *layer.pads),
        *(int(relu), x.images * bands, bands, tile.band),
        *(tile.chunk, floats.tile, lane_count(min(tile.band, y.height) * strips), splits),
        *(floats.x_rows, floats.x_pitch, floats.u_pitch, floats.w_pitch),
        *(floats.y_pitch, floats.z_rows, floats.z_pitch, wanted),
        *(x_vectors, y_vectors, int(in_vectors), strips),
        *(*divisor(x.width), *divisor(max(x_vectors, 1)), *divisor(y.width), *divisor(max(y_vectors, 1))),
        *(*divisor(strips), *divisor(z_strips), *divisor(tile.chunk if wanted else x.channels)),
    )


def _halves(n: int, least: int = 1) -> Iterator[int]:
    """Yield ``n``, half of it, and so on."""
    while True:
        yield n
        if n <= least:
            return
        n = max(ceil_div(n, 2), least)


def tiles(layer: Layer, memory: int = MOST) -> Iterator[Tile]:
    """Yield bands and chunks, large ones first."""
    for band in _halves(layer.y.height):
        for chunk in _halves(layer.x.channels, min(STRIP, layer.x.channels)):
            yield Tile(band, chunk, memory=memory)


def memory(device: torch.device) -> int:
    """Return how many bytes of shared memory a block may have on a device."""
    if device.type != "cuda":  # an emulator has as much as anyone wants
        return MORE
    properties: Any = torch.cuda.get_device_properties(device)
    return MORE if properties.shared_memory_per_block_optin >= 2 * MORE else MOST


def choose(layer: Layer, device: torch.device, *, back: bool, most: int = 0, layers: int = 1) -> Tile | None:
    """Return the tile for a layer: the one that moves least, and leaves little idle; None if none fits.

    Forward, a block that has more to do makes up for some that do nothing: so it was measured on an H200.

    Parameters
    ----------
    back : bool
        Whether it is for the gradients.
    most : int
        Bytes of shared memory that a block may have; by default, what ``memory`` says.
    layers : int
        How many such layers a launch has.
    """
    lay_out = backward if back else forward

    def rank(tile: Tile) -> tuple[float, int]:
        blocks = layer.x.images * layer.bands(tile.band)
        blocks *= ceil_div(layer.x.channels, tile.chunk) if back else 1
        idle = max(ENOUGH / (blocks * layers), 1.0)
        return blocks * lay_out(layer, tile).moved * (idle if back else idle**0.75), -tile.chunk

    allowed = most or memory(device)
    fitting = (tile for tile in tiles(layer, allowed) if lay_out(layer, tile).bytes <= tile.memory)
    return min(fitting, key=rank, default=None)


def candidates(layer: Layer, chosen: Tile, *, back: bool) -> Iterator[Tile]:
    """Yield the tiles worth timing: other bands, chunks and threads."""
    lay_out = backward if back else forward
    found = [chosen, *(replace(chosen, threads=threads) for threads in (128, 512))]
    for tile in tiles(layer, chosen.memory):
        close = tile.band in (chosen.band // 2, chosen.band, 2 * chosen.band)
        if close and 2 * tile.chunk >= chosen.chunk and lay_out(layer, tile).bytes <= chosen.memory:
            found.append(tile)
    yield from dict.fromkeys(found)
