"""Shape: one convolution of the study."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

SIDES = (32, 64, 128)
FILTERS = (3, 5, 7)
BATCH, CHANNELS, FILTER_COUNT = 2, 4, 8
LITERAL = 1
"""A padding that every filter is measured with, besides the one that keeps the size."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A convolution of square images with square filters of ``taps`` x ``taps``, stride 1."""

    side: int
    taps: int
    padding: int

    def __str__(self) -> str:
        return f"{self.side} x {self.side}, filter {self.taps}, padding {self.padding}"

    @property
    def key(self) -> list[int]:
        return [self.side, self.taps, self.padding]

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


def shapes(sides: Collection[int] = SIDES, filters: Collection[int] = FILTERS) -> list[Shape]:
    """Return each side with each filter, with both paddings."""
    return [
        Shape(side, taps, padding)
        for side in sides
        for taps in filters
        for padding in dict.fromkeys((taps // 2, LITERAL))
    ]


def few() -> list[Shape]:
    """Return three shapes, in which each side and each filter occurs."""
    return [Shape(side, taps, taps // 2) for side, taps in zip(SIDES, FILTERS, strict=True)]
