"""A bar on the standard error of a terminal, while a step waits for compilers."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator

Advance = Callable[[str, int, int], None]
"""Called with what is done, how many are done, and how many there are."""


@contextlib.contextmanager
def shown(title: str, *, lines: bool = False) -> Iterator[Advance]:
    """Show progress within this block: a bar in a terminal; elsewhere a line each, if ``lines`` is set."""
    if not sys.stderr.isatty():
        yield _line if lines else _silent
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


LONG_S, EVERY_S, FEW = 5.0, 10.0, 3
"""Seconds of measuring in first calls before anything is said of it, and between two lines; the problems from
whose mean the rest is estimated.
"""


class Measuring:
    """Says on standard error what is being measured in first calls, once that takes long.

    How many problems a program has isn't known before its calls, unless they were counted first.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._count, self._seconds, self._said = clock, 0, 0.0, -math.inf
        self._most = 0
        self._advance: Advance = _silent

    @contextlib.contextmanager
    def expected(self, count: int, advance: Advance) -> Iterator[None]:
        """Measure ``count`` problems within this block; in a terminal ``advance`` shows each."""
        self._count, self._seconds, self._most, self._advance = 0, 0.0, count, advance
        try:
            yield
        finally:
            self._most, self._advance = 0, _silent

    @contextlib.contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Measure a problem within this block."""
        began = self._clock()
        if self._most and sys.stderr.isatty():
            self._advance(f"measures {what}{self._left()}", self._count, max(self._most, self._count))
        elif self._seconds >= LONG_S and began - self._said >= EVERY_S:
            self._said = began
            sys.stderr.write(f"nxcore: measures {what}{self._so_far()}\n")
        try:
            yield
        finally:
            self._count += 1
            self._seconds += self._clock() - began

    def _so_far(self) -> str:
        if self._count < self._most:
            return f", {self._count + 1} of {self._most}{self._left()}"
        problems = f"{self._count} problem{'s' * (self._count != 1)}"
        return f"; {problems} so far in {self._seconds:.0f} s. `nxcore tune` does that ahead"

    def _left(self) -> str:
        """Return how long the rest takes, by the mean so far."""
        left = self._most - self._count
        known = self._count >= FEW and left > 0  # the first one loads a toolkit
        return f", about {self._seconds / self._count * left:.0f} s" if known else ""


def told(line: str) -> None:
    """Write a line to the standard error of a terminal; nothing elsewhere, where logs have it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{line}\n")


def _line(what: str, done: int, of: int) -> None:
    sys.stderr.write(f"compiled {done}/{of}: {what}\n")


def _silent(_what: str, _done: int, _of: int) -> None:
    pass
