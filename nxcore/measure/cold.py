"""Cold-cache inputs: rotate over copies so that a call never finds its data in cache."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from nxcore.spec.problem import leaves

CACHES = 5
"""The size of all copies together, in multiples of the last-level cache."""

MOST = 200


def rotation(args: tuple[Any, ...], cache: int) -> list[tuple[Any, ...]]:
    """Return copies of the arguments that together fill five times ``cache`` bytes; at most 200."""
    size = sum(t.numel() * t.element_size() for t in leaves(args))
    copies = min(max(1, -(-CACHES * cache // max(size, 1))), MOST)
    return [args, *(tuple(_copied(a) for a in args) for _ in range(copies - 1))]


def rotating(
    calls: Mapping[str, Callable[..., Any]], sets: Sequence[tuple[Any, ...]]
) -> dict[str, Callable[[], Any]]:
    """Return ``calls`` without arguments: each call takes the next of ``sets``.

    All calls share one rotation. With a rotation each, they would use the same copies in turn, and find them
    in the cache.
    """
    turns = itertools.cycle(sets)
    return {label: functools.partial(_on_next, call, turns) for label, call in calls.items()}


def _on_next(call: Callable[..., Any], turns: Iterator[tuple[Any, ...]]) -> Any:
    return call(*next(turns))


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_copied(v) for v in value)
    return value.clone() if isinstance(value, torch.Tensor) else value
