"""Shared by the planners of depthwise_conv2d and of its gradients: images, windows over them, and tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nxcore.plugin import Problem, TensorMeta, Window

FILL = 132
"""Multiprocessors of a large GPU.

A constant, not the device's own count, so that a gradient has the same bits on every device.
"""

# What a launch does, as in depthwise_slide.cuh: bits, and what is made of them.
CONVOLVES, SUMS, TURNED = 1, 2, 4
FORWARD, IMAGE, FILTER, BOTH = CONVOLVES, CONVOLVES | TURNED, SUMS, CONVOLVES | SUMS | TURNED

NARROW = 2**31  # what is fewer is counted in 32 bits
STEPS = "4q"  # struct Steps
TARGET = "q3i4x"  # struct FilterTarget
DIVISOR = "2I"  # struct Divisor


@dataclass(frozen=True)
class Tile:
    """The work of one thread, and the number of threads.

    Attributes
    ----------
    columns, rows : int
        Outputs of a thread across and down.
    ahead : int
        Rows of the image in flight.
    channels : int
        Channels of a thread; 1 where neighbours in memory are of one row.
    threads : int
        Of a block.
    resident : int
        Blocks that a multiprocessor is to hold, for the compiler; 0 leaves it the registers it likes.
    together : str
        How a call makes both gradients: ``both`` in each thread, a ``pair`` of kinds of blocks in one
        launch, or ``apart`` in two.
    """

    columns: int = 4
    rows: int = 7
    ahead: int = 3
    channels: int = 1
    threads: int = 128
    resident: int = 0
    together: str = "both"


@dataclass(frozen=True)
class Image:
    """A batch of images: sizes, and strides in elements, which are 0 where a size is 1."""

    images: int
    channels: int
    height: int
    width: int
    steps: tuple[int, int, int, int]

    @classmethod
    def of(cls, meta: TensorMeta) -> Image:
        """Describe a tensor of three or four dimensions."""
        lead = 4 - meta.ndim
        shape, strides = (*(1,) * lead, *meta.shape), (*(0,) * lead, *meta.strides)
        steps = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
        return cls(*shape, steps)  # type: ignore[arg-type, call-arg]  # four of each

    @property
    def in_rows(self) -> bool:
        """Neighbours in a row are neighbours in memory."""
        return self.steps[3] == 1 or self.width == 1

    @property
    def in_pixels(self) -> bool:
        """Neighbouring channels of a pixel are neighbours in memory."""
        return self.steps[1] == 1 or self.channels == 1

    @property
    def channels_inside(self) -> bool:
        """Channels change faster in memory than columns do."""
        return self.channels > 1 and (0 < self.steps[1] < max(self.steps[3], self.steps[2]))

    @property
    def packed_rows(self) -> bool:
        """The rows of a plane follow each other in memory without gaps."""
        return self.in_rows and self.steps[2] in (0, self.width)

    def divides(self, width: int) -> bool:
        """Return whether all rows are whole vectors of ``width`` elements, and begin at one."""
        return self.width % width == 0 and all(step % width == 0 for step in self.steps[:3])


@dataclass(frozen=True)
class Slide:
    """Where a window of ``size`` by ``size`` taps slides, and what it makes.

    Attributes
    ----------
    over : Image
        What the window slides over.
    own : Image
        What lies where the outputs do: x where both gradients are made, the output's gradient where only
        the filter's is.
    out : Image
        The outputs.
    pads : (int, int)
        Above and to the left.
    channel_step : int
        From one channel's filter to the next.
    """

    over: Image
    own: Image
    out: Image
    size: int
    stride: int
    dilation: int
    pads: tuple[int, int]
    channel_step: int

    @property
    def apart(self) -> int:
        """Rows from one output of a thread to its next."""
        return self.dilation if self.stride == 1 else 1


def filter_steps(weight: TensorMeta) -> tuple[int, int, int]:
    """Return the strides from channel to channel, row to row and column to column, 0 where a size is 1."""
    picked = ((weight.shape[k], weight.strides[k]) for k in (0, 2, 3))
    channel, row, column = (0 if n == 1 else s for n, s in picked)
    return channel, row, column


def dense_filter(weight: TensorMeta) -> bool:
    """Return whether a channel's taps lie in memory one after the other."""
    _, row, column = filter_steps(weight)
    height, width = weight.shape[2:]
    return (height == 1 or row == width) and (width == 1 or column == 1)


def square(seen: Window) -> tuple[int, int, int] | None:
    """Return filter size, stride and dilation where there are kernels for them, the same both ways."""
    pairs = (seen.kernel, seen.stride, seen.dilation)
    if any(down != across for down, across in pairs):
        return None
    k, s, d = (down for down, _ in pairs)
    return (k, s, d) if k in (3, 5, 7) and s in (1, 2) and d in (1, 2) else None


def forward(seen: Window, weight: TensorMeta, x: Image, out: Image) -> Slide:
    """Describe a forward pass."""
    k, s, d = square(seen) or (0, 0, 0)
    return Slide(x, out, out, k, s, d, seen.padding, filter_steps(weight)[0])


def turned(seen: Window, weight: TensorMeta, grad: Image, x: Image, x_grad: Image) -> Slide:
    """Describe a pass over the output's gradient: that of the image, and of the filter, at stride 1."""
    k, s, d = square(seen) or (0, 0, 0)
    pads = (d * (k - 1) - seen.padding[0], d * (k - 1) - seen.padding[1])
    return Slide(grad, x, x_grad, k, s, d, pads, filter_steps(weight)[0])


def usual() -> Iterator[Slide]:
    """Yield slides whose tiles, together, are those that ordinary calls want."""
    for images, channels, side in ((64, 16, 32), (128, 64, 56)):
        plane = side * side
        rows = Image(images, channels, side, side, (channels * plane, plane, side, 1))
        pixels = Image(images, channels, side, side, (channels * plane, 1, side * channels, channels))
        for on, size in ((rows, 3), (rows, 5), (pixels, 3)):
            yield Slide(on, on, on, size, 1, 1, (size // 2, size // 2), size**2)


def window(problem: Problem) -> Window:
    """Return the convolution's window."""
    x, weight = problem["x"], problem["weight"]
    height, width = weight.shape[-2:]
    return Window.of_convolution(
        x.shape, (height, width), problem["stride"], problem["padding"], problem["dilation"]
    )


def target(weight_grad: TensorMeta | None) -> tuple[int, ...]:
    """Return the values of a kernel's ``FilterTarget``."""
    return (0, 0, 0, 1) if weight_grad is None else (*filter_steps(weight_grad), weight_grad.shape[3])


def divisor(n: int) -> tuple[int, int]:
    """Return the values of a kernel's ``Divisor``: Granlund and Montgomery 1994."""
    shift = (n - 1).bit_length()
    return (2**32 * (2**shift - n) // n + 1) % 2**32, shift


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def share(chunks: int, channels: int, resident: int) -> int:
    """Return how many blocks share the chunks of a channel so that all end at about the same time."""
    slots = FILL * resident
    most = min(chunks, max(4 * slots // channels, 1))

    def cost(splits: int) -> float:
        return ceil_div(channels * splits, slots) * (ceil_div(chunks, splits) + 0.5)

    return min(range(1, most + 1), key=lambda splits: (cost(splits), splits))
