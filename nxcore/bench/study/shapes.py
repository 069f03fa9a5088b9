"""Shape: one convolution of the study, and which of them a run measures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError

SIDES = (32, 64, 128)
FILTERS = (3, 5, 7)
BATCH, CHANNELS, FILTER_COUNT = 2, 4, 8
LITERAL = 1
"""The padding that the study's forerunners used for every filter."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A convolution of square images with square filters, stride 1.

    Attributes
    ----------
    side : int
        Height and width of the images.
    taps : int
        Height and width of a filter.
    padding : int
        Zeros on each side.

    Examples
    --------
    >>> shape = Shape(32, 5, 2)
    >>> str(shape), shape.out, shape.same
    ('32 x 32, filter 5, padding 2', 32, True)
    """

    side: int
    taps: int
    padding: int

    def __str__(self) -> str:
        return f"{self.side} x {self.side}, filter {self.taps}, padding {self.padding}"

    @property
    def key(self) -> list[int]:
        """Side, taps and padding."""
        return [self.side, self.taps, self.padding]

    @property
    def out(self) -> int:
        """Height and width of the result."""
        return self.side + 2 * self.padding - self.taps + 1

    @property
    def same(self) -> bool:
        """Whether the result is as large as the image."""
        return self.padding == self.taps // 2

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return images and filters of random numbers, the same at every call."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(BATCH, CHANNELS, self.side, self.side, generator=generator)
        weight = torch.randn(FILTER_COUNT, CHANNELS, self.taps, self.taps, generator=generator)
        return x.to(device), weight.to(device)


def shapes(sides: Collection[int] = (), filters: Collection[int] = (), *, few: bool = False) -> list[Shape]:
    """Return the shapes of a run: each side with each filter, with both paddings.

    Parameters
    ----------
    sides, filters : collection of int
        Only these; all if empty.
    few : bool
        Only the padding that keeps the size. Without other filters, only three shapes, in which each side and
        each filter occurs.

    Raises
    ------
    InvalidInputError
        If a side or a filter isn't one of the study's.

    Examples
    --------
    >>> [str(shape) for shape in shapes([32], [3, 5])]
    ['32 x 32, filter 3, padding 1', '32 x 32, filter 5, padding 2', '32 x 32, filter 5, padding 1']
    >>> len(shapes()), len(shapes(few=True))
    (15, 3)
    """
    _require("input-size", sides, SIDES)
    _require("kernel-size", filters, FILTERS)
    if few and not sides and not filters:
        return [Shape(side, taps, taps // 2) for side, taps in zip(SIDES, FILTERS, strict=True)]
    paddings = (lambda taps: (taps // 2,)) if few else (lambda taps: (taps // 2, LITERAL))
    return [
        Shape(side, taps, padding)
        for side in SIDES
        for taps in FILTERS
        if side in (sides or SIDES) and taps in (filters or FILTERS)
        for padding in dict.fromkeys(paddings(taps))
    ]


def _require(argument: str, given: Collection[int], known: Sequence[int]) -> None:
    for value in given:
        if value not in known:
            raise InvalidInputError(
                f"{argument} must be one of {', '.join(map(str, known))}, got {value}", argument=argument
            )
