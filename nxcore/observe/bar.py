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


LONG_S, EVERY_S = 5.0, 10.0
"""Seconds of measuring in first calls before anything is said of it, and between two lines."""


class Measuring:
    """Says on standard error what is being measured in first calls, once that takes long.

    How many problems a program has isn't known before its calls.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._count, self._seconds, self._said = clock, 0, 0.0, -math.inf

    @contextlib.contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Measure a problem within this block."""
        began = self._clock()
        if self._seconds >= LONG_S and began - self._said >= EVERY_S:
            self._said = began
            problems = f"{self._count} problem{'s' * (self._count != 1)}"
            so_far = f"{problems} so far in {self._seconds:.0f} s"
            sys.stderr.write(f"nxcore: measures {what}; {so_far}. `nxcore tune` does that ahead\n")
        try:
            yield
        finally:
            self._count += 1
            self._seconds += self._clock() - began


def told(line: str) -> None:
    """Write a line to the standard error of a terminal; nothing elsewhere, where logs have it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{line}\n")


def _line(what: str, done: int, of: int) -> None:
    sys.stderr.write(f"compiled {done}/{of}: {what}\n")


def _silent(_what: str, _done: int, _of: int) -> None:
    pass
