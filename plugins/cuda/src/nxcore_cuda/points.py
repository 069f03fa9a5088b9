"""1x1 convolutions: a call's shapes, the tiles of a block and its shared memory; see ``points.cuh``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from itertools import product

from nxcore.plugin import Problem, TensorMeta
from nxcore_cuda.depthwise import FILL, STEPS, Image, ceil_div
from nxcore_cuda.direct import MOST

WARP, THREADS, TOGETHER, SPARE = 32, 256, 8, 4
WARPS = THREADS // WARP
LAYOUT = f"{3 * STEPS}2q2i2q2i2q11i4x"
"""The values of ``points_args``, behind its pointers."""

FOUR = 4


@dataclass(frozen=True)
class Tile:
    """The work of a thread, and how many warps share the channels of one place.

    Attributes
    ----------
    pixels : int
        Neighbouring pixels of a thread.
    made : int
        Its channels out.
    slices : int
        Warps that share the channels.
    """

    pixels: int
    made: int
    slices: int


@dataclass(frozen=True)
class Filters:
    """Steps from channel out to channel out and from term to term, and how many of both there are."""

    made: int
    term: int
    terms: int
    outs: int


@dataclass(frozen=True)
class Sizes:
    """The image's height and width, those of the convolution's output, and the stride."""

    height: int
    width: int
    out_height: int
    out_width: int
    stride: int

    @classmethod
    def of(cls, x: TensorMeta, out: TensorMeta, stride: int) -> Sizes:
        """Describe an image and the output, or its gradient."""
        height, width = x.shape[2:]
        out_height, out_width = out.shape[2:]
        return cls(height, width, out_height, out_width, stride)

    def whole(self, *images: Image) -> tuple[int, ...]:
        """Return the lengths of vectors that neither rows nor planes of any image cut, longest first."""
        if self.stride == 1:
            plane = self.out_height * self.out_width
            if not all(image.packed_rows for image in images):
                return ()
            steps = [plane, *(step for image in images for step in image.steps[:2])]
            return tuple(n for n in (FOUR, 2) if all(step % n == 0 for step in steps))
        doubled = self.height == 2 * self.out_height and self.width == 2 * self.out_width
        if self.stride != 2 or not doubled or not all(image.in_rows for image in images):
            return ()
        return tuple(n for n in (FOUR, 2) if all(image.divides(n) for image in images))


@dataclass(frozen=True)
class Points:
    """A product's shapes.

    Attributes
    ----------
    x, out : Image
        What is multiplied, and what is written.
    seen : Image or None
        Of the gradient of ReLU: the image.
    filters : (Filters, Filters)
        Those of pixel (0, 0) of each window, and shifted ones.
    turned : bool
        Whether this is the image's gradient.
    relu : bool
        Whether the image's negative elements count as zero, forward.
    x_start, out_start : int
        Elements in front of the shifted filters' channels, in ``x`` and in ``out``.
    """

    x: Image
    out: Image
    seen: Image | None
    filters: tuple[Filters, Filters]
    sizes: Sizes
    turned: bool
    relu: bool
    x_start: int = 0
    out_start: int = 0

    @classmethod
    def of(cls, problem: Problem) -> Points:
        """Describe a call."""
        x, weight, shifted, stride, relu = problem.args
        out = problem.outputs
        return cls(
            Image.of(x),
            Image.of(out),
            None,
            (_filters(weight, turned=False), _filters(shifted, turned=False)),
            Sizes.of(x, out, stride),
            turned=False,
            relu=relu,
            out_start=weight.shape[0] * out.strides[1],
        )

    @classmethod
    def turned_of(cls, problem: Problem) -> Points:
        """Describe the product that makes the image's gradient."""
        grad, x, weight, shifted, stride, relu, _ = problem.args
        return cls(
            Image.of(grad),
            Image.of(problem.outputs[0]),
            Image.of(x) if relu else None,
            (_filters(weight, turned=True), _filters(shifted, turned=True, outs=x.shape[1])),
            Sizes.of(x, grad, stride),
            turned=True,
            relu=False,
            x_start=weight.shape[0] * grad.strides[1],
        )

    @property
    def has_shifted(self) -> bool:
        """Whether there are shifted filters."""
        return (self.filters[1].terms if self.turned else self.filters[1].outs) > 0

    @property
    def whole(self) -> tuple[int, ...]:
        """The lengths of vectors that neither rows nor planes cut, longest first."""
        return self.sizes.whole(self.x, self.out, *(() if self.seen is None else (self.seen,)))

    def items(self, pixels: int) -> tuple[int, int]:
        """Return the lots of pixels: all, and those of an image."""
        spread = self.turned and pixels == 1
        sizes = self.sizes
        plane = sizes.height * sizes.width if spread else sizes.out_height * sizes.out_width
        return self.x.images * (plane // pixels), plane // pixels

    def lots(self, tile: Tile) -> tuple[int, int]:
        """Return the lots of channels out: all, and those of filters that aren't shifted."""
        own, shifted = (ceil_div(f.outs, tile.made) for f in self.filters)
        if self.turned:  # shifted filters, or zeros in their place
            shifted = own if self.has_shifted or (self.sizes.stride == 2 and tile.pixels > 1) else 0
        return own + shifted, own

    def bytes(self, tile: Tile) -> int:
        """Return the shared memory of a block."""
        weights = max(f.terms for f in self.filters) * (tile.made + SPARE)
        found = TOGETHER * THREADS * tile.pixels * (tile.slices > 1)
        return 4 * max(weights, found)

    def blocks(self, tile: Tile) -> int:
        """Return the number of blocks."""
        items, _ = self.items(tile.pixels)
        return ceil_div(items, WARP * (WARPS // tile.slices)) * self.lots(tile)[0]

    def warps(self, tile: Tile) -> int:
        """Return the number of warps."""
        return self.blocks(tile) * WARPS

    def values(self, tile: Tile) -> tuple[int, ...]:
        """Return the values of ``points_args``, behind its pointers."""
        seen = (0, 0, 0, 0) if self.seen is None else self.seen.steps
        described = (n for f in self.filters for n in (f.made, f.term, f.terms, f.outs))
        return (
            *(*self.x.steps, *self.out.steps, *seen, *described, self.x_start, self.out_start),
            *astuple(self.sizes),
            *(*self.items(tile.pixels), *self.lots(tile), int(self.relu), int(self.has_shifted)),
        )


def _filters(weight: TensorMeta | None, *, turned: bool, outs: int = 0) -> Filters:
    """Describe filters; of none, ``outs`` zeros are made in their place."""
    if weight is None:
        return Filters(0, 0, 0, outs)
    out, channel = weight.strides[:2]
    if turned:
        return Filters(channel, out, weight.shape[0], weight.shape[1])
    return Filters(out, channel, weight.shape[1], weight.shape[0])


def choose(points: Points) -> Tile:
    """Return the tile: two pixels of 16 channels a thread, and warps that share terms, to fill a large GPU.

    The image's gradient at stride 1 has many channels of few terms: four pixels a thread, and eight channels
    rather than shares.
    """
    outs, terms = (max(getattr(f, name) for f in points.filters) for name in ("outs", "terms"))
    many = points.turned and points.sizes.stride == 1
    enough = FILL * (11 if many else 15)
    pixels = next((n for n in ((FOUR, 2) if many else (2,)) if n in points.whole), 1)
    tile = Tile(pixels, 2 * TOGETHER if outs > TOGETHER else TOGETHER, 1)
    if many and terms < 8 * TOGETHER and points.warps(tile) < enough:
        tile = replace(tile, made=TOGETHER)
    while tile.slices < WARPS and terms >= 2 * TOGETHER * tile.slices and points.warps(tile) < enough:
        tile = replace(tile, slices=2 * tile.slices)
    return tile if points.bytes(tile) <= MOST else replace(tile, made=TOGETHER)


def candidates(points: Points) -> Iterator[Tile]:
    """Yield the tiles worth timing, the chosen one first."""
    found = [choose(points)]
    for pixels, made, slices in product((*points.whole, 1), (8, 16, 32), (1, 2, 4, 8)):
        tile = Tile(pixels, made, slices)
        useful = made < 2 * max(f.outs for f in points.filters) and (pixels > 1 or not points.whole)
        if useful and pixels * made <= 64 and points.bytes(tile) <= MOST:
            found.append(tile)
    yield from dict.fromkeys(found)
