"""Calls on ever other memory: what a cache still holds of the last call is no part of the next one's time."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from nxcore.verify import leaves

CACHES = 5
"""How many times the last-level cache the copies make up."""

MOST = 200


def rotation(args: tuple[Any, ...], cache: int) -> list[tuple[Any, ...]]:
    """Return as many copies of the arguments as make up five times ``cache`` bytes; at most 200."""
    size = sum(t.numel() * t.element_size() for t in leaves(args))
    copies = min(max(1, -(-CACHES * cache // max(size, 1))), MOST)
    return [args, *(tuple(_copied(a) for a in args) for _ in range(copies - 1))]


def rotating(call: Callable[..., Any], sets: list[tuple[Any, ...]]) -> Callable[[], Any]:
    """Return ``call`` without arguments: each time on the next of ``sets``."""
    turns = itertools.cycle([functools.partial(call, *args) for args in sets])
    return lambda: next(turns)()  # noqa: PLW0108  the next one at each call


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_copied(v) for v in value)
    return value.clone() if isinstance(value, torch.Tensor) else value
