"""The gradient of a convolution's image as convolutions of stride 1, one for each phase of the stride."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from nxcore.spec.window import Pair, Window


@dataclass(frozen=True, slots=True)
class Turned:
    """Pixels of an image a stride apart: their gradient is a convolution of that of the outputs.

    Attributes
    ----------
    window : Window
        On the outputs, of stride 1; its outputs are the pixels. Its padding may be negative, and its kernel
        0 where no window sees the pixels.
    first : (int, int)
        The first pixel.
    tap, step : (int, int)
        The filter's tap that is the window's first, and the taps from each to the one before it, which is
        the window's next.
    """

    window: Window
    first: Pair
    tap: Pair
    step: Pair


def turned_windows(seen: Window) -> Iterator[Turned]:
    """Yield the parts of the image's gradient; with a stride of 1 there is one.

    Examples
    --------
    >>> from nxcore.spec.turned import turned_windows
    >>> from nxcore.spec.window import Window
    >>> [len(list(turned_windows(Window.of_convolution((8, 8), (3, 3), stride, 1)))) for stride in (1, 2)]
    [1, 4]
    """
    of = (seen.image, seen.kernel, seen.stride, seen.padding, seen.dilation)
    for down, across in product(*(list(_turned(*axis)) for axis in zip(*of, strict=True))):
        first, pixels, taps, tap, step, padding, dilation = zip(down, across, strict=True)
        yield Turned(Window(seen.outputs, pixels, taps, (1, 1), padding, dilation), first, tap, step)


def _turned(n: int, k: int, s: int, p: int, d: int) -> Iterator[tuple[int, ...]]:
    """Yield first, pixels, taps, tap, step, padding and dilation of each part of an axis."""
    step = s // math.gcd(s, d)
    for first in range(min(s, n)):
        taps = [a for a in range(k) if (first + p - a * d) % s == 0]
        last = taps[-1] if taps else 0
        padding = (last * d - first - p) // s if taps else 0
        yield first, -(-(n - first) // s), len(taps), last, step, padding, step * d // s
