"""Learnt and held-out problems: families of sizes, drawn at random, log-uniformly.

Learnt are every corner of a family's range and some points inside it. Held out are points inside the range,
and points up to half the range beyond its upper end in one size.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nxcore.spec.sample import Layout, Sample, rand

FLOAT = torch.float32
Range = tuple[int, int]


@dataclass(frozen=True)
class Family:
    """Problems that differ in their sizes.

    Attributes
    ----------
    op : str
        The operator.
    name : str
        Name of the family.
    make : callable
        Sizes -> the operator's arguments, as sketches.
    ranges : tuple of (int, int)
        Range of each size, both ends included.
    dtype : torch.dtype
        The dtype of all tensors.
    """

    op: str
    name: str
    make: Callable[..., tuple[Any, ...]]
    ranges: tuple[Range, ...]
    dtype: torch.dtype = FLOAT

    def learnt(self, count: int) -> Iterator[Sample]:
        """Yield every corner, and ``count`` points inside the range."""
        yield from map(self._sample, itertools.product(*self.ranges))
        dice = random.Random(f"{self.op} {self.name} learnt")
        for _ in range(count):
            yield self._sample(tuple(_drawn(dice, *of) for of in self.ranges))

    def held(self, count: int) -> Iterator[Sample]:
        """Yield ``count`` problems that aren't learnt; every fourth is beyond the range in one size."""
        dice = random.Random(f"{self.op} {self.name} held out")
        for turn in range(count):
            sizes = [_drawn(dice, *of) for of in self.ranges]
            if turn % 4 == 3:
                at = dice.randrange(len(sizes))
                sizes[at] = _drawn(dice, self.ranges[at][1], self.ranges[at][1] * 3 // 2)
            yield self._sample(tuple(sizes))

    def _sample(self, sizes: tuple[int, ...]) -> Sample:
        return Sample(f"{self.name}_{'x'.join(map(str, sizes))}", self.make(*sizes))


def _drawn(dice: random.Random, low: int, high: int) -> int:
    return round(low * (high / low) ** dice.random())


def _blend(count: int, size: int) -> tuple[Any, ...]:
    return tuple(rand(size) for _ in range(count)), rand(count)


def _image(layout: Layout, *how: Any) -> Callable[..., tuple[Any, ...]]:
    return lambda n, c, side: (rand(n, c, side, side, layout=layout), *how)


def _filtered(size: int, *how: Any) -> Callable[..., tuple[Any, ...]]:
    return lambda n, c, side: (rand(n, c, side, side), rand(c, 1, size, size), *how)


def families(*, large: bool) -> list[Family]:
    """Return the families, some with one winner, some with several; ``large`` ones are for a GPU."""
    flat = (1 << 8, 1 << (26 if large else 19))
    side = (16, 8192 if large else 512)
    box = ((4, 256), (8, 512), (8, 512)) if large else ((2, 64), (2, 64), (8, 128))
    image = ((4, 256), (8, 128), (7, 112)) if large else ((1, 8), (4, 32), (7, 40))
    blend = ((2, 12), (1 << 10, 1 << 23)) if large else ((2, 12), (1 << 8, 1 << 16))
    half, plain, last = torch.bfloat16, "contiguous", "channels_last"
    return [
        Family("add", "flat", lambda n: (rand(n), rand(n)), (flat,)),
        Family("add", "channel", lambda a, b, c: (rand(a, b, c), rand(b, 1)), box, half),
        Family("sum", "inner", lambda m, n: (rand(m, n), -1), (side, side)),
        Family("sum", "outer", lambda m, n: (rand(m, n), 0), (side, side), half),
        Family("sum", "around", lambda a, b, c: (rand(a, b, c), (0, 2)), box),
        Family("sum_to_size", "column", lambda a, b, c: (rand(a, b, c), (b, 1)), box),
        Family("softmax_sum", "flat", _blend, blend),
        Family("softmax_sum", "flat_half", _blend, blend, half),
        Family("avg_pool2d", "three_last", _image(last, 3, 1, 1, False, False), image),
        Family("avg_pool2d", "three_strided", _image(plain, 3, 2, 1, False, False), image, half),
        Family("max_pool2d", "three", _image(plain, 3, 1, 1), image),
        Family("max_pool2d", "three_strided_last", _image(last, 3, 2, 1), image),
        Family("depthwise_conv2d", "three", _filtered(3, 1, 1), image),
        Family("depthwise_conv2d", "five_dilated", _filtered(5, 1, 4, 2), image, half if large else FLOAT),
    ]
