"""Trial: a model's steps with two sets of modules on nxcore's operators, judged by the rules of a race.

It is a pure function of the times it is given. A pair is a block of steps with the other set, and the steps
with the present set before and after it. Only alike steps are compared.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nxcore.measure.decision import SIGNIFICANCE, Interval, interval, signed_rank

LOOKS = (8, 12, 20, 40)
"""Pairs after which the verdict is computed; the trial ends after the last one."""

CLEAR, CLEARLY = 1.25, 3
"""The trial also ends after so many pairs, if one set is so much faster in each."""

LOSS, LAST = 0.02, 3
"""The loss of steps, relative to plain ones, that is too much; the number of pairs that show it at once."""

FRUITLESS = 12
"""Pairs in a row without alike steps, after which the trial ends."""

TORCHS = "nothing to compare: torch serves every module"
"""Why there is no trial, or no further block."""

Verdict = Literal["present", "other", "unclear", ""]
"""The faster set; ``unclear`` after the last look, and empty as long as more pairs are needed."""


Timed = tuple[Hashable, float]
"""A key that is equal for alike steps, and the seconds of one: from the model's call to the next."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a pair.

    Attributes
    ----------
    ratio : float, optional
        The time of steps with the other set over that of alike ones with the present set; None if there are
        no alike steps.
    extra : float
        The seconds that the other set cost, those of steps that are not compared included.
    """

    ratio: float | None
    extra: float


def paired(present: Sequence[Timed], other: Sequence[Timed], uncompared: Sequence[Timed] = ()) -> Found:
    """Compare a block of ``other`` steps with the ``present`` ones around it."""
    known: defaultdict[Hashable, list[float]] = defaultdict(list)
    for key, seconds in present:
        known[key].append(seconds)
    alike = [(seconds, statistics.fmean(known[key])) for key, seconds in other if key in known]
    theirs, ours = (sum(column) for column in zip(*alike, strict=True)) if alike else (0.0, 0.0)
    usual = statistics.fmean(seconds for _, seconds in present)
    extra = sum(seconds - usual for _, seconds in (*other, *uncompared))
    return Found(theirs / ours if ours > 0 and theirs > 0 else None, extra)


@dataclass
class Trial:
    """The pairs of a comparison, and its verdict.

    Attributes
    ----------
    present, other : frozenset of str
        The groups of modules that run nxcore's operators; all others run torch's.
    ratios : list of float
        The time with the other set over that with the present set, a value a pair.
    margin : float
        The gain that the other set must exceed.
    clearly : int
        The pairs after which the other set may have won by far.
    """

    present: frozenset[str]
    other: frozenset[str]
    ratios: list[float] = field(default_factory=list)
    fruitless: int = 0
    margin: float = 0.0
    clearly: int = CLEARLY

    def add(self, found: Found) -> None:
        """Add a pair."""
        self.fruitless = 0 if found.ratio else self.fruitless + 1
        if found.ratio:
            self.ratios.append(found.ratio)

    @property
    def speed(self) -> Interval:
        """How many times as fast the present set is as the other one."""
        return interval(self.ratios)

    @property
    def loses(self) -> bool:
        """Whether something is learnt, and the last pairs show too great a loss of it."""
        last = self.ratios[-LAST:]
        return self.margin > 0 and len(last) == LAST and statistics.median(last) < 1 - LOSS

    @property
    def verdict(self) -> Verdict:
        """The verdict as of now."""
        n = len(self.ratios)
        if n >= CLEARLY and min(self.ratios) > CLEAR:
            return "present"
        if n >= self.clearly and max(self.ratios) < 1 / CLEAR:
            return "other"
        logs = [math.log(ratio) for ratio in self.ratios]
        if n in LOOKS and signed_rank([v + math.log1p(self.margin) for v in logs]) < SIGNIFICANCE:
            return "other"
        if n in LOOKS and signed_rank([-v for v in logs]) < SIGNIFICANCE:
            return "present"
        return "unclear" if n >= LOOKS[-1] or self.fruitless >= FRUITLESS else ""

    def against(self, name: str) -> str:
        """Return how fast an entrant of this name is, of one set alone, as text."""
        found = interval([1 / r for r in self.ratios] if name in self.other else self.ratios)
        return f"{found} the speed of the other steps, {len(self.ratios)} blocks"

    @property
    def summary(self) -> str:
        """The result, as one line."""
        if not self.ratios:
            return "not compared: no two steps are alike"
        gives = self.other > self.present  # whether the other set leaves more modules to torch
        ours = self.speed if gives else interval([1 / ratio for ratio in self.ratios])
        better = {
            "present": "pays" if gives else "given back",
            "other": "given back" if gives else "taken back",
        }
        unclear = f"{'kept' if gives else 'given back'}, as there is no clear difference"
        groups = ", ".join(sorted(self.present ^ self.other))
        return (
            f"{better.get(self.verdict, unclear)}: {ours} the speed of plain steps, "
            f"{len(self.ratios)} blocks, {groups}"
        )


@dataclass
class Mode:
    """The state of one mode: training or evaluation, under autocast or not.

    Attributes
    ----------
    given : frozenset of str
        The groups of modules that were given back.
    trial : Trial, optional
        The present trial.
    queue : list of str
        Groups of which each is to be tried alone.
    state : str
        The present state or the result, as one line.
    over : bool
        Whether there is nothing to do until another choice is made.
    made : int
        The choices that were made when the trial began.
    again : float
        When to try again even without another choice.
    extra : float, optional
        The seconds that the last block cost.
    """

    given: frozenset[str] = frozenset()
    trial: Trial | None = None
    queue: list[str] = field(default_factory=list)
    state: str = "waits for calls"
    over: bool = False
    made: int = -1
    again: float = math.inf
    extra: float | None = None

    def begin(self, trial: Trial, made: int) -> None:
        """Begin a trial."""
        self.trial, self.made, self.over, self.extra, self.again = trial, made, False, None, math.inf
        self.state = "compares: no block so far"

    def end(self, state: str) -> None:
        """End the present trial."""
        self.trial, self.over, self.state, self.queue = None, True, state, []

    def clear(self) -> None:
        """Forget all."""
        self.given, self.trial, self.over, self.queue = frozenset(), None, False, []
