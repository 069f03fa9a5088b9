"""Groups: the modules of a model that can be given back, by what they are.

A group is the class of its modules. A module within one whose ``forward`` was replaced, such as the cell of a
search network, belongs to that one's group: a capture of the cell doesn't outlive another class in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from nxcore.nn.exchange import AWAKE, MARK, PATCHED, RESTING, become, kind
from nxcore.nn.marks import capture_is_due
from nxcore.nn.programs import ModelProgram
from nxcore.nn.served import LEFT, look, rest
from nxcore.nn.whole import ModelWhole

REPLAYS = "replays"
"""The group that is the model's replays, beside those of its modules."""

GIVEN_BACK = "it rests: the model's steps are faster without it"


@dataclass(frozen=True, slots=True)
class Given:
    """A module that was given back: a weak reference, its class before, torch's, its group and its count."""

    of: weakref.ref[nn.Module]
    ours: type[nn.Module]
    torchs: type[nn.Module]
    group: str
    left: int


class Groups:
    """Exchanges the modules of a model by group.

    Parameters
    ----------
    whole : ModelWhole or ModelProgram, optional
        What replays the model's calls in training.

    Attributes
    ----------
    resting : dict of int to Given
        The modules that are given back, by identity.
    """

    def __init__(self, whole: ModelWhole | ModelProgram | None = None) -> None:
        self._whole = whole
        self.resting: dict[int, Given] = {}

    def present(self, model: nn.Module, *, resting: bool = False) -> frozenset[str]:
        """Return the groups that can be given back, or are; with ``resting``, also those that rest."""
        there = {group for group, _, _, _ in self._walk(model, resting=resting)}
        if model.training and self._whole is not None and self._whole.stands:
            there.add(REPLAYS)
        return frozenset(there | {given.group for given in self.resting.values()})

    @property
    def recorded(self) -> tuple[int, bool]:
        """How often calls were recorded, and whether any are replayed now."""
        return (0, False) if self._whole is None else (self._whole.made, bool(self._whole.captured))

    def due(self, model: nn.Module) -> bool:
        """Return whether one of the next calls may be captured, or a part of it."""
        return (self._whole is not None and self._whole.pending) or capture_is_due(model)

    @property
    def holds(self) -> bool:
        """Whether all modules that are given back still rest."""
        return all((m := back.of()) is None or kind(m) is back.torchs for back in self.resting.values())

    def rest(self, model: nn.Module, given: frozenset[str]) -> None:
        """Let torch serve exactly these groups."""
        if self._whole is not None:
            self._whole.resting = REPLAYS in given
            self._whole.entrants.serving = next((n for n in self._whole.entrants.names if n in given), "")
        for key, back in list(self.resting.items()):
            if back.group not in given:
                del self.resting[key]
                if (module := back.of()) is not None:
                    _take(module, back)
        if not given:
            return
        for group, module, ours, torchs in list(self._walk(model)):
            if group not in given:
                continue
            key = id(module)
            drop = weakref.ref(module, lambda _, key=key: self.resting.pop(key, None))  # type: ignore[misc]  # a default
            self.resting[key] = Given(drop, ours, torchs, group, vars(module).get(LEFT, 0))
            if ours in RESTING:
                rest(module, GIVEN_BACK, given=True)
            else:
                become(module, torchs)

    def look(self, model: nn.Module) -> None:
        """Wake the modules that rest by themselves: a shape came back."""
        for module in model.modules():
            if kind(module) in AWAKE and MARK in vars(module) and id(module) not in self.resting:
                look(module)

    def _walk(
        self, model: nn.Module, *, resting: bool = False
    ) -> Iterator[tuple[str, nn.Module, type[nn.Module], type[nn.Module]]]:
        """Yield group, module, its class and torch's, of each module that runs nxcore's ``forward``."""
        seen: set[int] = set()

        def walk(module: nn.Module, within: str) -> Iterator[tuple[str, nn.Module, type, type]]:
            if id(module) in seen:
                return
            seen.add(id(module))
            cls = kind(module)
            if back := self.resting.get(id(module)):
                within = within or (back.group if back.ours not in RESTING else "")
            if (torchs := vars(cls).get(PATCHED)) is not None:
                within = within or cls.__name__
                yield within, module, cls, torchs
            elif MARK in vars(module) and cls in RESTING:
                yield within or cls.__name__, module, cls, RESTING[cls]
            elif resting and MARK in vars(module) and cls in AWAKE:
                yield within or cls.__name__, module, AWAKE[cls], cls
            for child in module.children():
                yield from walk(child, within)

        return walk(model, "")


def _take(module: nn.Module, back: Given) -> None:
    """Give a module the class back that it had, unless something else has changed it since."""
    if kind(module) is not back.torchs:
        return
    if back.ours in RESTING:
        look(module)
        vars(module)[LEFT] = back.left  # a block of plain steps says nothing of the calls before it
    else:
        become(module, back.ours)
