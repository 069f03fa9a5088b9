"""Retries: problems are chosen anew that met a shortage of the machine, or whose race it was too busy for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from nxcore.choose.contenders import Choice
from nxcore.measure.busy import INCONCLUSIVE
from nxcore.spec.kernel import Code
from nxcore.spec.problem import Problem

FIRST_S, LONGEST_S = 5.0, 3600.0
"""Seconds until the first retry, and the most between two; each wait is four times the last one."""


class Retries:
    """Waits, and has the problems chosen anew that met a shortage, or a busy machine.

    Parameters
    ----------
    drop : callable
        Takes problems, and drops their choices.
    """

    def __init__(self, drop: Callable[[Collection[Problem]], None]) -> None:
        self._drop, self._wait = drop, FIRST_S
        self.after_fork()

    def after_fork(self) -> None:
        """Begin without a thread, as in a forked child."""
        self._lock, self._short, self._timer = threading.Lock(), set[Problem](), None

    def note(self, problem: Problem, choice: Choice) -> None:
        """Choose a problem again later, if a kernel met a shortage, or its race gave no decision."""
        decision = choice.decision
        short = any(c.refusal and c.refusal.code is Code.MEMORY for c in decision.candidates)
        if short or decision.rule == INCONCLUSIVE:
            self.add(problem)

    def add(self, problem: Problem) -> None:
        """Choose a problem again later."""
        with self._lock:
            self._short.add(problem)
            if self._timer is None:
                self._timer = threading.Timer(self._wait, self._due)
                self._timer.daemon = True
                self._timer.start()

    _timer: threading.Timer | None

    def _due(self) -> None:
        with self._lock:
            problems, self._short, self._timer = self._short, set(), None
            self._wait = min(4 * self._wait, LONGEST_S)
        self._drop(problems)
