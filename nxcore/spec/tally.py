"""Tally: how much this process and its workers have compiled and measured, and how long that took."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


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


Phase = Literal["compile wait", "gate", "timing"]
"""Parts of the time that measuring ahead takes."""

_lock = threading.Lock()
_sums = {"compilations": 0, "races": 0}
_seconds: dict[Phase, float] = {"compile wait": 0.0, "gate": 0.0, "timing": 0.0}


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


@contextlib.contextmanager
def spent(phase: Phase) -> Iterator[None]:
    """Count the seconds of this block."""
    began = time.perf_counter()
    try:
        yield
    finally:
        with _lock:
            _seconds[phase] += time.perf_counter() - began


def seconds() -> dict[Phase, float]:
    """Return the seconds of each phase so far."""
    with _lock:
        return dict(_seconds)
