"""Confirmation: a kernel that was chosen by figures of elsewhere is held to them by a short race, once.

These figures come with the package, or from an imported file. A contradiction has the problem learnt anew.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose.contenders import AGAIN, Choice, private_out, timed, yardstick
from nxcore.choose.learn.budget import Heat
from nxcore.choose.learn.exploration import CALL_S, Switch
from nxcore.choose.learn.learner import Learner
from nxcore.errors import FOREIGN, present
from nxcore.measure import race
from nxcore.measure.decision import MARGIN, NOISY, compare
from nxcore.measure.lane import Clock
from nxcore.measure.race import IN_CALL, SPIN_S
from nxcore.spec.device import heed_no_capture
from nxcore.spec.problem import Problem
from nxcore.store.problems import arguments
from nxcore.trust.gate import brief

_log = logging.getLogger(__name__)

CALLS = 1000
"""Calls after which a choice is confirmed."""

SECONDS = 60.0
"""Seconds of use after which it is confirmed with fewer calls."""

BRIEF = replace(IN_CALL, budget_s=CALL_S, spin_s=SPIN_S)
"""The effort of a confirmation: as many paired blocks as one call bears."""

ATTEMPTS = 3
"""The most confirmations of a choice: one is repeated where its A/A noise says nothing."""


class Confirmation:
    """Counts the calls of a kernel until it is time to confirm it.

    ``due`` is called with the share of the program's time that the calls took. ``call`` is the kernel's,
    which is counted until then.
    """

    def __init__(
        self, planned: Callable[..., Any], due: Callable[[float], None], clock: Clock = time.perf_counter_ns
    ) -> None:
        self._planned, self._due, self._clock = planned, due, clock
        self._step = self._counted  # kept, since a switch's target must outlive calls in other threads
        self._calls, self._heat, self._first = 0, Heat(), 0
        self._switch = Switch(self, self._step)
        self.call = self._switch.call

    def again(self) -> None:
        """Count anew."""
        self._calls, self._heat, self._first = 0, Heat(), 0
        self._switch.to(self._step)

    def _counted(self, *args: Any) -> Any:
        began = self._clock()
        result = self._planned(*args)
        ended = self._clock()
        self._heat.note(began, ended)
        self._calls, self._first = self._calls + 1, self._first or began
        if self._calls >= CALLS or ended - self._first >= SECONDS * 1e9:
            self._switch.to(self._planned)
            self._due(self._heat.share)
        return result


class Confirmations:
    """The confirmations of a session.

    Parameters
    ----------
    learner : callable
        Returns the learner, in whose thread and budget confirmations run.
    contradicted : callable
        Called with a problem whose choice was contradicted, and the reason.
    """

    def __init__(self, learner: Callable[[], Learner], contradicted: Callable[[Problem, str], None]) -> None:
        self._learner, self._contradicted = learner, contradicted

    def over(self, choice: Choice, problem: Problem) -> Choice:
        """Return ``choice``, with its calls counted if its figures are from elsewhere."""
        fixed = torch.are_deterministic_algorithms_enabled()
        if not choice.foreign or choice.native or problem.view or fixed:
            return choice
        learner, left = self._learner(), ATTEMPTS

        def due(heat: float) -> None:
            learner.preparing.add(confirm, heat)

        def confirm() -> None:
            nonlocal left
            left -= 1
            if not self._confirmed(learner, choice, problem) and left:
                counted.again()

        counted = Confirmation(choice.call, due, learner.clock)
        learner.pace.begin()
        return replace(choice, call=counted.call)

    def _confirmed(self, learner: Learner, choice: Choice, problem: Problem) -> bool:
        """Race the kernel against torch; return False if the noise was too large for a decision."""
        learner.pace.rest(0.0)
        try:
            slower, noise = compared(learner, choice, problem)
        except FOREIGN as error:  # no memory, a lost context: calls will show it
            _log.debug(
                "confirmation: %s of %s isn't confirmed: %s", choice.decision.chosen, problem, brief(error)
            )
            return True
        if noise > NOISY:
            return False
        if slower > 1 + max(MARGIN, 2 * noise):
            why = f"{choice.decision.chosen} takes {slower:.2f} times as long as torch here"
            self._contradicted(problem, why)
        return True


def compared(learner: Learner, choice: Choice, problem: Problem) -> tuple[float, float]:
    """Return a kernel's time relative to torch's best by the paired blocks, and the A/A noise."""
    tuner, args = learner.tuner, private_out(problem, arguments(problem))
    if problem.device.type == "cuda":
        heed_no_capture()
    reference, *ways = [(b, k) for b, k in tuner.taking_part(problem.op) if b.name == "torch"]
    ways = [(b, k) for b, k in ways if not yardstick(k)]
    if best := _fastest(choice, {b.label(k) for b, k in ways}):  # else none of them was timed
        ways = [(b, k) for b, k in ways if b.label(k) == best]
    native = [reference, *ways]
    entries = [tuner.enter(b, k, problem, args, first=False) for b, k in native]
    entries = [e for e in entries if e.call]
    mine = next(c for c in choice.decision.candidates if c.label == choice.decision.chosen)
    calls = {e.candidate.label: _bound(e.call, args) for e in entries} | {
        mine.label: _bound(choice.call, args)
    }
    with torch.no_grad():
        timings = race.race(
            calls,
            problem.device,
            rivals=frozenset(e.candidate.label for e in entries),
            again=AGAIN,
            effort=BRIEF,
        )
    judged, noise = compare(timed([*(e.candidate for e in entries), mine], timings), timings.get(AGAIN))
    ratio = present(judged[-1].ratio, "ratio")
    if any(t.fault for t in timings.values()):  # others disturbed it: it says nothing
        noise = math.inf
    return 1 / ratio.high, noise


def _fastest(choice: Choice, labels: set[str]) -> str:
    """Return the fastest of torch's ways on record."""
    found = [c for c in choice.decision.candidates if c.label in labels and c.timing]
    return min(found, key=lambda c: c.timing.median_us if c.timing else 0.0).label if found else ""


def _bound(call: Callable[..., Any] | None, args: tuple[Any, ...]) -> Callable[[], Any]:
    run = present(call, "call")
    return lambda: run(*args)
