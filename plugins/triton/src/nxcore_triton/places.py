"""Properties of a window by its position: its divisor, its first tap, and the index of a tap."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def counted(index, kernel, stride, padding, size, PADDED: tl.constexpr):
    """Return along one axis how many taps the window of an output counts, at least 1."""
    first = index * stride - padding
    if PADDED:
        n = tl.minimum(first + kernel, size + padding) - first
    else:
        n = tl.minimum(first + kernel, size) - tl.maximum(first, 0)
    return tl.maximum(n, 1).to(tl.float32)


@triton.jit
def first_tap(top, left, kernel, dilation, size, SAID: tl.constexpr):
    """Return the first tap that lies on the image; if none does 0, or for an index the one torch names."""
    a = tl.maximum((dilation[0] - 1 - top) // dilation[0], 0)
    b = tl.maximum((dilation[1] - 1 - left) // dilation[1], 0)
    on = (a < kernel[0]) & (top + a * dilation[0] < size[0])
    on = on & (b < kernel[1]) & (left + b * dilation[1] < size[1])
    tap = a * kernel[1] + b
    return tap if SAID == "index" else tl.where(on, tap, 0)


@triton.jit
def index_of(tap, top, left, across, dilation, width):
    """Return the place on the plane of a tap's input, ``row * width + column``."""
    row = top + tap // across * dilation[0]
    return row.to(tl.int64) * width + left + tap % across * dilation[1]
