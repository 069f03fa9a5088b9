"""Contest: the race of a problem's kernels, at once or in pieces, and the decision on their times."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose.admission import struck
from nxcore.choose.contenders import (
    AGAIN,
    Choice,
    Contender,
    carry_out,
    decided,
    private_out,
    settles,
    timed,
    uncontested,
    unmeasured,
)
from nxcore.errors import DeviceLostError
from nxcore.measure import race
from nxcore.measure.decision import Decision
from nxcore.measure.lane import Clock
from nxcore.measure.timing import Timing
from nxcore.spec.kernel import Refusal
from nxcore.spec.problem import Problem
from nxcore.trust.gate import Gate, lost


class Contest:
    """The kernels of a problem that can serve it, raced against torch.

    Parameters
    ----------
    gate : Gate
        Counts the failures of kernels.
    effort : Effort
        How much is measured; None for nothing.
    problem : Problem
        The call without its data.
    args : tuple
        Arguments of such a call.
    entries : sequence of Contender
        The kernels, torch's reference first.
    before : Decision, optional
        The decision on record, whose winners stay at ties.

    Attributes
    ----------
    reason : str
        Why torch serves without a race, or although there was one; empty where times decide.
    again : Timing, optional
        The A/A row, once the race is over.
    """

    def __init__(
        self,
        gate: Gate,
        effort: race.Effort | None,
        problem: Problem,
        args: tuple[Any, ...],
        entries: Sequence[Contender],
        before: Decision | None = None,
    ) -> None:
        self._gate, self._problem, self._entries, self._before = gate, problem, list(entries), before
        self._racing = [e for e in entries if e.races]
        self.reason = uncontested(problem, entries)
        if not self.reason and effort is None:
            self.reason = "not measured: NXCORE_NO_MEASURE is set"
        self._args, self._effort = args, effort or race.Effort()
        self._failures: dict[str, Refusal] = {}
        self._race: race.Race | None = None
        self._timings: Mapping[str, Timing] = {}
        self.again: Timing | None = None

    @property
    def progress(self) -> str:
        """How far the race is, as words."""
        done = self._race.done if self._race else 0
        return f"{done} of at most {self._effort.looks[-1]} rounds are complete"

    def run(self) -> None:
        """Race at once."""
        if not self.reason:
            self._step(math.inf, None)

    def go(self, seconds: float, clock: Clock = time.perf_counter_ns) -> bool:
        """Race for so many seconds, at least a step; return whether it is over."""
        return bool(self.reason) or self._step(seconds, clock)

    def _step(self, seconds: float, clock: Clock | None) -> bool:
        candidates = [e.candidate for e in self._entries]
        how: dict[str, Any] = {
            "rivals": frozenset(c.label for c in candidates if c.native),
            "again": AGAIN,
            "effort": self._effort,
            "failed": self._failed,
            "cost": self._problem.cost,
        }
        try:
            with torch.no_grad():
                if self._race is None:
                    how["settled"] = settles(self._problem, candidates, self._effort)
                    given = private_out(self._problem, self._args)
                    calls = {
                        e.candidate.label: functools.partial(e.call, *given) for e in self._racing if e.call
                    }
                    if clock is None:
                        self._timings = race.race(calls, self._problem.device, **how)
                        return True
                    self._race = race.Race(calls, self._problem.device, clock=clock, **how)
                if not self._race.go(seconds):
                    return False
                self._timings = self._race.timings
        except Exception as error:
            if reason := lost(self._problem.device):
                first, *rest = (e.candidate.label for e in self._racing)
                op = self._problem.op
                raise DeviceLostError(reason, op=op, kernel=first, sure=False, before=rest) from error
            self.reason = unmeasured(error)
        return True

    def _failed(self, label: str, error: Exception) -> None:
        entry = next((e for e in self._racing if e.candidate.label == label), self._entries[0])
        self._failures[label] = struck(self._gate, entry.backend, entry.kernel, self._problem, error)

    @property
    def decision(self) -> Decision:
        """The decision on the times so far."""
        found = self._failures
        for e in self._racing:  # a kernel may have been convicted meanwhile, in calls of another problem
            if why := self._gate.refusal(e.backend, e.kernel, self._problem):
                found[e.candidate.label] = why
        timings = {label: timing for label, timing in self._timings.items() if label not in found}
        others = [e.candidate.label for e in self._racing if e.backend.name != "torch"]
        if not self.reason and found and not any(label in timings for label in others):
            self.reason = "; ".join(f"{label}: {why}" for label, why in found.items())
        entered = [e.candidate for e in self._entries]
        candidates = [replace(c, refusal=found.get(c.label, c.refusal)) for c in entered]
        if self.reason:
            return Decision(candidates[0].label, "reference", self.reason, tuple(candidates))
        self.again = timings.get(AGAIN)
        rows = timed(candidates, timings)
        return decided(self._problem, rows, self.again, self._entries, before=self._before)

    @property
    def choice(self) -> Choice:
        """The choice of the decision."""
        return replace(carry_out(self.decision, self._entries), again=self.again)
