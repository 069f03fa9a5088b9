"""Tally: how much this process and its workers have compiled and measured."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of work so far.

    Attributes
    ----------
    compilations : int
        Kernels that were compiled, by this process and for it by workers, as far as plugins announce it.
    races : int
        Comparisons of candidates that were begun: in a call, in the background, or by calls that take turns.
    """

    compilations: int = 0
    races: int = 0


_lock = threading.Lock()
_sums = {"compilations": 0, "races": 0}


def compiled(times: int = 1) -> None:
    """Count compilations."""
    with _lock:
        _sums["compilations"] += times


def raced() -> None:
    """Count a race."""
    with _lock:
        _sums["races"] += 1


def tally() -> Tally:
    """Return the counts so far."""
    with _lock:
        return Tally(**_sums)
