"""The taps of a window, one after the other: unrolled where they are few, a loop where they are many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from nxcore.plugin import Window

UNROLLED = 64


def each_tap(window: Window, visit: Callable[[Any, Any], Any], state: Any) -> Any:
    """Return the state that ``visit(tap, state)`` leaves after all taps, each a number, traced or not."""
    if window.taps > UNROLLED:
        return lax.fori_loop(0, window.taps, visit, state)
    for tap in range(window.taps):
        state = visit(tap, state)
    return state


def start(window: Window, tap: Any) -> tuple[Any, Any]:
    """Return the row and the column, on the padded image, of a tap of the first window."""
    down, across = window.kernel[1], window.dilation
    return tap // down * across[0], tap % down * across[1]


def seen(padded: jax.Array, window: Window, tap: Any) -> jax.Array:
    """Return what the windows see through a tap: one element of the padded image for each output."""
    spans = tuple((o - 1) * s + 1 for o, s in zip(window.outputs, window.stride, strict=True))
    row, column = start(window, tap)
    zeros = (0,) * (padded.ndim - 2)
    span = lax.dynamic_slice(padded, (*zeros, row, column), (*padded.shape[:-2], *spans))
    return span[..., :: window.stride[0], :: window.stride[1]]


def pad(x: jax.Array, window: Window, value: Any) -> jax.Array:
    """Return an image with the padding that every window fits into."""
    left, right, above, below = window.padded
    edges = [(0, 0, 0)] * (x.ndim - 2) + [(above, below, 0), (left, right, 0)]
    return lax.pad(x, jax.numpy.asarray(value, x.dtype), edges)


def crop(padded: jax.Array, window: Window) -> jax.Array:
    """Return the image without its padding."""
    left, _, above, _ = window.padded
    height, width = window.image
    return padded[..., above : above + height, left : left + width]
