"""A block of steps with other modules exchanged, and the steps around it, as they are recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nxcore.nn.trial import Found, Timed, paired

AROUND, WITHIN, WARM = 4, 2, 1
"""The steps before a block and after it, those within, and those after an exchange that aren't timed."""

APART = 3
"""The most steps that are left out between two pairs, at random: some loops have a period."""

LASTS_S = 60.0
"""Seconds after which a block that didn't end is no reason to wait: its model may not be called any more."""

Phase = Literal["before", "within", "after"]


@dataclass(slots=True)
class Step:
    """One step: its phase, whether it is timed, its key, and the marks of its beginning and its end."""

    phase: Phase
    timed: bool
    key: Hashable
    began: Any
    ended: Any = None


class Pair:
    """The steps of a block and those around it.

    Parameters
    ----------
    skipped : int
        Steps at the beginning that are left out.
    before : sequence of Step
        Steps that precede it.

    Attributes
    ----------
    phase : str
        The phase of the next step.
    tries : int
        How often the next phase had to wait.
    """

    def __init__(self, skipped: int = 0, before: Sequence[Step] = ()) -> None:
        self.phase: Phase = "before"
        self.steps = list(before)
        self.tries = 0
        self._left = max(0, AROUND - len(before)) + skipped

    @property
    def complete(self) -> bool:
        """Whether the present phase has all of its steps."""
        return self._left <= 0

    def begin(self, key: Hashable, mark: Any) -> None:
        """Note the beginning of a step."""
        self._left -= 1
        least = {"before": -1, "within": WITHIN, "after": AROUND}[self.phase]
        self.steps.append(Step(self.phase, not 0 <= least <= self._left, key, mark))

    def end(self, mark: Any) -> None:
        """Note the end of the step that has begun."""
        if self.steps and self.steps[-1].ended is None:
            self.steps[-1].ended = mark

    def enter(self) -> None:
        """Begin the block."""
        self.steps = self.steps[-AROUND:]
        self.phase, self._left, self.tries = "within", WARM + WITHIN, 0

    def leave(self) -> None:
        """Begin the steps after the block."""
        self.phase, self._left = "after", WARM + AROUND

    def next(self, skipped: int) -> Pair:
        """Return the pair that follows; the steps after this block precede the next one."""
        return Pair(
            skipped, [Step("before", True, s.key, s.began, s.ended) for s in self.steps[-AROUND:] if s.timed]
        )

    def found(self, seconds: Callable[[Any, Any], float]) -> Found:
        """Return the comparison."""

        def chosen(*phases: Phase, timed: bool = True) -> list[Timed]:
            found = [s for s in self.steps if s.phase in phases and s.timed is timed]
            return [(s.key, seconds(s.began, s.ended)) for s in found]

        return paired(chosen("before", "after"), chosen("within"), chosen("within", timed=False))


class Turns:
    """Lets one watch at a time have a block: another model's steps may contain it."""

    def __init__(self) -> None:
        self._of: weakref.ref[Any] | None = None
        self._since = 0.0

    def taken(self, watch: Any, now: float) -> bool:
        """Return whether another watch has a block."""
        other = self._of() if self._of else None
        return other is not None and other is not watch and now - self._since < LASTS_S

    def take(self, watch: Any, now: float) -> None:
        """Note the beginning of a block."""
        self._of, self._since = weakref.ref(watch), now

    def leave(self, watch: Any) -> None:
        """Note the end of a block of ``watch``, if it has one."""
        if self._of is not None and self._of() is watch:
            self._of = None


TURNS = Turns()
