"""Learning: a new problem's kernels are prepared in the background, and raced beside its calls."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable

import torch

from nxcore.choose.contenders import PROBLEMS, Choice
from nxcore.choose.learn.budget import ALLOWANCE_S, GRACE_S, Hand, Pace
from nxcore.choose.learn.lesson import Decided, Lesson
from nxcore.choose.recall import Recall
from nxcore.choose.survey import Survey
from nxcore.choose.workers import POLL_S
from nxcore.context import KernelWarning
from nxcore.measure.decision import Decision
from nxcore.measure.lane import Clock
from nxcore.spec.problem import Problem
from nxcore.trust.gate import brief

Family = Callable[[Problem], Choice | None]


QUIET_S = 0.5
"""Seconds since the last piece of a race of the CPU's after which workers begin another task."""


class Learner:
    """Starts explorations, and does their work in one background thread, within its budget.

    ``recall`` keeps the results; its tuner determines which kernels may take part. ``changed`` is called when
    plans must be made again, after a decision. ``family`` returns the choice for a problem that needs no
    exploration, or None; ``survey`` measures problems beside the program. ``compiling`` is the number of
    kernels that workers compile or will compile; a race of the CPU's was last at work at ``raced``, by
    ``time.monotonic``.
    """

    def __init__(
        self,
        recall: Recall,
        changed: Callable[[], None],
        clock: Clock = time.perf_counter_ns,
        pace: Pace | None = None,
        *,
        family: Family = lambda _: None,
        survey: Survey | None = None,
    ) -> None:
        self.recall, self.tuner, self.clock = recall, recall.tuner, clock
        self._changed, self._undone = changed, False
        self.family, self.survey = family, survey or Survey(None, changed)
        self.compiling, self.raced = 0, -math.inf
        self.keep_quiet()
        self.keep_to(pace or Pace(allowance=ALLOWANCE_S, grace=GRACE_S))

    def keep_quiet(self) -> None:
        """Have workers begin nothing while the CPU races: a compiler beside it delays some kernels more."""
        if self.tuner.workers is not None:
            self.tuner.workers.affords = lambda: time.monotonic() - self.raced > QUIET_S

    def keep_to(self, pace: Pace) -> None:
        """Use a new hand, of that pace."""
        self.pace, self.preparing = pace, Hand(pace, idle=self._idle, failed=self._failed, most=PROBLEMS)

    def refusal(self, problem: Problem) -> str:
        """Return why a problem's calls can't be explored; empty if they can. Longer checks are made later."""
        if problem.writes:
            return "it writes into an argument"
        if torch.are_deterministic_algorithms_enabled():
            return "under a deterministic setting calls must not differ"
        if problem.view:
            return "it is a view: there is nothing to run"
        if len(self.tuner.taking_part(problem.op)) == 1 or not threading.main_thread().is_alive():
            return "no other kernel accepts it"
        return ""

    def start(self, problem: Problem, serve: Decided) -> Choice:
        """Return the choice for ``problem`` from now on: torch, and later the exploration."""
        backend, kernel = self.tuner.taking_part(problem.op)[0]
        self.pace.begin()
        exploration = Lesson(self, problem, serve).exploration
        reason = "its kernels are measured beside its first calls, once they are ready"
        return Choice(Decision("torch", "exploring", reason), exploration.call, kernel, backend)

    def settle(self, timeout: float | None = None) -> None:
        """Wait until there is no background work left."""
        ends = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            if thread := self.preparing.thread:
                thread.join(timeout)
            busy = self.compiling or self.survey.open or self.preparing.thread
            if not busy or time.monotonic() > ends:
                return
            time.sleep(POLL_S)

    def after_fork(self) -> None:
        """Start again in a forked child, which has no background threads."""
        self.compiling = 0
        if self.tuner.workers:
            self.tuner.workers.after_fork()
        self.keep_to(self.pace.anew())

    def finished(self) -> None:
        """Have plans made again after a decision: once for several that the thread makes in a row."""
        self._undone = True
        if self.preparing.thread is not threading.current_thread():
            self._idle()

    def _idle(self) -> None:
        undone, self._undone = self._undone, False
        if undone:
            self._changed()

    def _failed(self, error: Exception) -> None:
        text = f"learning from calls failed with {brief(error)}; torch serves them"
        warnings.warn(text, KernelWarning, stacklevel=1)
