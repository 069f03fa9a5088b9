"""Fresh: the tensors that a plan makes. A node's gradients may be parts of one allocation.

Results of an operator's own call are not: torch forbids it for operators that compilers see.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

PART = 2**20
"""The most bytes of a gradient that is allocated with others. Torch's allocator splits larger blocks too."""

APART = 512
"""Parts of an allocation begin at multiples of so many bytes, as torch's allocations do."""


class Fresh(NamedTuple):
    """A tensor that a plan makes: with memory of its own, or in that of the one whose number is ``whole``.

    There it begins at ``place``, in elements.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    whole: int | None = None
    place: int = 0


def together(result: Any, fresh: list[Tensor]) -> list[list[Tensor]]:
    """Return tensors that a plan makes for one sequence in its result: the gradients of many candidates.

    To allocate each takes the host longer than the launch. One allocation for all lives as long as any of
    them, as with the gradients of torch's own ``stack``.
    """
    found = []
    for items in result if isinstance(result, (tuple, list)) else ():
        if isinstance(items, (tuple, list)):
            numbers = {number(item, fresh) for item in items if isinstance(item, Tensor)} - {None}
            small = [t for i, t in enumerate(fresh) if i in numbers and 0 < _bytes(t) <= PART]
            found += [small] if len(small) > 1 else []
    return found


def _bytes(tensor: Tensor) -> int:
    begin, end = span(tensor)
    return end - begin


def laid(fresh: list[Tensor], together: list[list[Tensor]]) -> tuple[Fresh, ...]:
    """Return how tensors are made, of which the first are the allocations of those that are made together."""
    places, sizes = {}, [0] * len(together)
    for whole, parts in enumerate(together):
        for part in parts:
            places[id(part)] = whole, sizes[whole] // part.element_size()
            sizes[whole] += -(-_bytes(part) // APART) * APART
    wholes = [Fresh(torch.uint8, (size,), (1,)) for size in sizes]
    others = fresh[len(together) :]
    return (*wholes, *[Fresh(t.dtype, tuple(t.shape), t.stride(), *places.get(id(t), ())) for t in others])


def apart(fresh: tuple[Fresh, ...]) -> tuple[Fresh, ...]:
    """Return the same tensors, each with memory of its own."""
    wholes = {one.whole for one in fresh}
    alone = [one._replace(whole=None, place=0) for one in fresh]
    return tuple(one._replace(sizes=(0,)) if i in wholes else one for i, one in enumerate(alone))


def number(result: Tensor, fresh: list[Tensor]) -> int | None:
    """Return which of the tensors that a plan makes a result is: torch's modes may give it another object."""
    same = (t is result or (t.numel() and place_of(t) == place_of(result)) for t in fresh)
    return next((i for i, is_one in enumerate(same) if is_one), None)


def place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return where a tensor lies, and how."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def span(tensor: Tensor) -> tuple[int, int]:
    """Return where a tensor's elements begin and end."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size() if tensor.numel() else begin
