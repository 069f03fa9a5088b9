"""Tracing: dynamo gets the graph of a model as if all of its modules were torch's own.

A module's class comes and goes between siblings that compute the same, so dynamo isn't to guard it. That is
tested here instead, at each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from nxcore.nn.exchange import AWAKE, PATCHED, RESTING, Plain, become, kind, kinds


def torchs(module: nn.Module) -> type[nn.Module]:
    """Return the class, torch's or the user's, that computes what ``module`` does."""
    cls = kind(module)
    cls = AWAKE.get(cls, cls)
    if cls in RESTING:
        return kinds(cls)[0]
    found: type[nn.Module] = vars(cls).get(PATCHED, cls)
    return found


def exchanged(module: object) -> bool:
    """Return whether the class of ``module`` is one of ours."""
    return isinstance(module, nn.Module) and torchs(module) is not kind(module)


class Siblings:
    """The modules of a model with classes of ours, as they are at present.

    Parameters
    ----------
    model : torch.nn.Module
        The model; no reference to it is kept, but for its modules.
    """

    def __init__(self, model: nn.Module) -> None:
        owners = [vars(module)["_modules"] for module in model.modules()]
        self._places = [
            (own, name, child) for own in owners for name, child in own.items() if exchanged(child)
        ]
        self._modules: list[nn.Module] = [child for _, _, child in self._places]
        self._types = [*map(type, self._modules)]
        self._torchs = [*map(torchs, self._modules)]
        self._all = {id(module) for module in (model, *self._modules) if exchanged(module)}

    def hold(self) -> bool:
        """Return whether they are the same modules still, and compute the same."""
        if not all([own.get(name) is child for own, name, child in self._places]):  # noqa: C419  twice as fast
            return False
        if (types := [*map(type, self._modules)]) != self._types:
            if [*map(torchs, self._modules)] != self._torchs:
                return False
            self._types = types
        return True

    def kept(self, entries: Sequence[Any]) -> list[bool]:
        """Return which of dynamo's guards are kept: not those of the classes that are tested here."""
        names = {entry.name for entry in entries if entry.has_value and id(entry.value) in self._all}
        of_class = tuple(f"type({name})" for name in names)
        return [
            not (entry.guard_type == "TYPE_MATCH" and entry.name in names)
            and not any(text in entry.name for text in of_class)
            for entry in entries
        ]


@contextlib.contextmanager
def plainly(model: nn.Module) -> Iterator[None]:
    """Let torch's, or the user's own, ``forward`` serve the model and its modules within a block."""
    cls, sibling = kind(model), RESTING.get(kind(model))
    with Plain(model):
        if sibling is not None:
            become(model, sibling)
        try:
            yield
        finally:
            if sibling is not None and kind(model) is sibling:
                become(model, cls)
