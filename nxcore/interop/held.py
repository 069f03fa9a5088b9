"""Held: what torch's own autograd saves of a call, found by trying.

A write to a tensor after the call raises in the backward pass where that reads the tensor. A program that
torch runs must run with a kernel too: what torch doesn't hold, the autograd function saves as a copy, or
without a watch on it where its backward operator reads no value. See ``Differentiable``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from nxcore.errors import FOREIGN
from nxcore.interop import internals
from nxcore.spec.problem import leaves, tensors_of


class Held(NamedTuple):
    """The tensors of a call that torch saves.

    Attributes
    ----------
    needed : tuple of bool
        Of each tensor whether it needs a gradient, sequences flattened.
    saved : tuple of bool
        Of each tensor whether torch's backward pass reads it.
    results : tuple of bool
        The same of each result.
    """

    needed: tuple[bool, ...]
    saved: tuple[bool, ...]
    results: tuple[bool, ...] = ()

    def apart(
        self, names: Sequence[str], kept: Sequence[int], reads: Mapping[str, tuple[str, ...]]
    ) -> tuple[list[int], list[int]]:
        """Return which of the ``kept`` tensors aren't held: those to copy, and those that are never read.

        ``names`` are the tensors' parameters, and ``reads`` those of a gradient; see ``Gradient``.
        """
        needing = {name for name, needed in zip(names, self.needed, strict=True) if needed}
        copied, unread = list[int](), list[int]()
        for i in kept:
            if not self.saved[i]:
                read = needing.intersection(reads.get(names[i], needing))
                (copied if read else unread).append(i)
        return copied, unread

    def unheld_results(self) -> list[int]:
        """Return the results after the first that aren't held."""
        return [i for i, saved in enumerate(self.results) if i and not saved]


def held(reference: Callable[..., Any], args: tuple[Any, ...]) -> Held:
    """Run the reference of a call and see what it saves; where that fails, nothing is held.

    >>> x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    >>> held(torch.mul, (x, y)).saved
    (False, True)
    """
    given = list(tensors_of(args))
    needed = tuple(t.requires_grad for t in given)
    tensors = [t.detach().requires_grad_(needs) for t, needs in zip(given, needed, strict=True)]
    storages = set[int]()

    def note(tensor: Tensor) -> Tensor:
        storages.add(internals.storage(tensor))
        return tensor

    rest = iter(tensors)
    try:
        with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
            results = list(leaves(reference(*[_swapped(value, rest) for value in args])))
    except FOREIGN:
        return Held(needed, (False,) * len(needed))
    # All are alive until now: memory that was freed may be another tensor's.
    saved, made = (tuple(internals.storage(t) in storages for t in found) for found in (tensors, results))
    return Held(needed, saved, made)


def _swapped(value: Any, rest: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_swapped(item, rest) for item in value)
    return next(rest) if isinstance(value, Tensor) else value
