"""Retries: problems are chosen anew whose kernels were refused for a shortage of the machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from nxcore.choose.contenders import Choice
from nxcore.spec.kernel import Code
from nxcore.spec.problem import Problem

FIRST_S, LONGEST_S = 5.0, 3600.0
"""Seconds until the first retry, and the most between two; each wait is four times the last one."""


class Retries:
    """Waits, and has the problems that met a shortage chosen anew.

    Parameters
    ----------
    drop : callable
        Takes problems, and drops their choices.
    first : float
        See ``FIRST_S``.
    """

    def __init__(self, drop: Callable[[Collection[Problem]], None], first: float = FIRST_S) -> None:
        self._drop, self._wait = drop, first
        self.after_fork()

    def after_fork(self) -> None:
        """Begin without a thread, as in a forked child."""
        self._lock, self._short, self._timer = threading.Lock(), set[Problem](), None

    def note(self, problem: Problem, choice: Choice) -> None:
        """Choose a problem again later, if a kernel was refused for a shortage."""
        if not any(c.refusal and c.refusal.code is Code.MEMORY for c in choice.decision.candidates):
            return
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
