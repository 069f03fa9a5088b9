"""Ledger: the time that a network's steps have taken until its capture, beside as many of torch's own.

A step is from one call of the network to the next: its backward pass, the optimizer and whatever else the
program does are in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PLAIN = 3
"""The steps by torch alone whose fastest one is taken for torch's: not the first, nor those of captures."""

COST = 0.05
"""The share of torch's time that a program may lose."""

PAUSE = 2.0
"""Seconds beyond a step, and what nxcore did in it, from which on the program did something else."""


class Ledger:
    """Counts steps, and what they took.

    Parameters
    ----------
    clock : callable
        Returns seconds.

    Attributes
    ----------
    steps : int
        The steps that are over.
    spent_s : float
        Their seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self.steps, self.spent_s = clock, 0, 0.0
        self._began: float | None = None
        self._own_s, self._plain = 0.0, False
        self._found: list[float] = []

    def begins(self) -> None:
        """Note that a step begins, and the last one is over."""
        now, began = self._clock(), self._began
        self._began = now
        if began is None:
            return
        took = now - began
        if self._plain and len(self._found) < PLAIN:
            self._found.append(took)
        usual = self.plain_s or took
        if took > usual + self._own_s + PAUSE:
            took = usual + self._own_s
        self.steps, self.spent_s = self.steps + 1, self.spent_s + took
        self._own_s, self._plain = 0.0, False

    def plainly(self) -> None:
        """Note that the step that began is one of torch's own."""
        self._plain = True

    def add(self, seconds: float) -> None:
        """Note seconds of the step that began as spent by nxcore, for a capture."""
        self._own_s, self._plain = self._own_s + seconds, False

    @property
    def plain_s(self) -> float:
        """The seconds of a step of torch's own; 0 as long as too few are known."""
        return min(self._found) if len(self._found) == PLAIN else 0.0

    @property
    def elapsed_s(self) -> float:
        """The seconds of all steps, with what has passed of the last one."""
        return self.spent_s + (0.0 if self._began is None else self._clock() - self._began)

    def owes(self, seconds: float = 0.0) -> bool:
        """Return whether so many more seconds would exceed what may be lost."""
        return self.spent_s + seconds > (1 + COST) * self.steps * self.plain_s
