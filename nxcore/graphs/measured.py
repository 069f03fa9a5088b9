"""Measured: whether a run for a capture has measured anything, so that another one precedes the recording.

The kernels that were chosen lead to other problems, and a recording can measure none.
"""

from __future__ import annotations

from collections.abc import Callable

from nxcore.session import default
from nxcore.spec.tally import tally

MORE = 2
"""The most runs between a first one and a recording."""


class Measured:
    """The races and choices of this process until now."""

    def __init__(self) -> None:
        self._races, self._problems = _numbers()

    def repeated(self, run: Callable[[], object]) -> None:
        """Run as long as the last run measured problems, or has found pairs of operators to measure."""
        for _ in range(MORE):
            races, problems = _numbers()
            more = races > self._races and problems > self._problems
            if not (more or default().chooser.pairs.waiting):
                return
            self._races, self._problems = races, problems
            run()


def _numbers() -> tuple[int, int]:
    """Return the number of races, and of problems that a kernel is chosen for."""
    chooser = default().chooser
    return tally().races, chooser.made - chooser.pairs.made
