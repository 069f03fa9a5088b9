"""Turns: a device that the program and the processes which measure beside it have one after the other.

A race beside other work takes twice as long, and so does that work. A process says so before a race; the
program leaves it the device between two replays, and goes on when the race is over. Of two processes, one
races while the other compiles and verifies.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

ASKS, GO, OVER = "waits", "go", "over"
"""The word of the process before a race, the program's answer, and the word of the process after it."""

PATIENCE_S = 0.3
"""Seconds after which a process races beside the program, which may do anything else between two steps, and
beside a longer race of another process.
"""

Say = Callable[[str], object]


class Turns:
    """The program's side.

    Parameters
    ----------
    taken : callable
        Whether the program's calls give turns now. Where they don't, the process has its answer at once.
    """

    def __init__(self, taken: Callable[[], bool]) -> None:
        self._taken, self._over, self._asks = taken, threading.Event(), threading.Event()
        self._answer: Say | None = None
        self._lock = threading.Lock()
        self._racing: Say | None = None  # the process whose race is on or next, and since when
        self._since = 0.0
        self._waiting: list[Say] = []

    @property
    def asked(self) -> bool:
        """Whether a process waits for the device."""
        return self._answer is not None

    def heard(self, word: str, answer: Say) -> None:
        """Note a word of a process; ``answer`` sends it one. Calls are in other threads."""
        with self._lock:
            if word == ASKS:
                if self._racing is None or time.monotonic() - self._since > PATIENCE_S:
                    self._begin(answer)
                else:
                    self._waiting.append(answer)
            elif answer == self._racing:
                self._racing = self._answer = None
                self._asks.clear()
                self._over.set()
                if self._waiting:
                    self._begin(self._waiting.pop(0))
            elif answer in self._waiting:  # it didn't wait any longer
                self._waiting.remove(answer)

    def _begin(self, answer: Say) -> None:
        """Have a process race next."""
        self._racing, self._since = answer, time.monotonic()
        if self._taken():
            self._over = threading.Event()
            self._answer = answer
            self._asks.set()
        else:
            answer(GO)

    def asked_within(self, seconds: float) -> bool:
        """Wait until the process wants the device, at most so long; return whether it does."""
        return self._asks.wait(max(0.0, seconds)) and self.asked

    def give(self, most_s: float) -> float:
        """Leave the device to the process until its race is over; return the seconds that this took.

        That is at most ``most_s``, and none where the process doesn't wait.
        """
        with self._lock:
            (answer, self._answer), over = (self._answer, None), self._over
            self._asks.clear()
        if answer is None:
            return 0.0
        began = time.monotonic()
        answer(GO)
        over.wait(most_s)
        return time.monotonic() - began


class Turn:
    """The side of the process.

    Parameters
    ----------
    say : callable
        Sends the program a word.
    patience : float
        See ``PATIENCE_S``.

    Attributes
    ----------
    waited : float
        Seconds that it has waited for the device.
    """

    def __init__(self, say: Say, patience: float = PATIENCE_S) -> None:
        self._say, self._patience, self._go = say, patience, threading.Event()
        self.waited = 0.0

    def heard(self, word: str) -> None:
        """Note what the program says, in the thread that reads it."""
        if word == GO:
            self._go.set()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the device within the block, as far as the program gives it."""
        self._go.clear()
        began = time.monotonic()
        self._say(ASKS)
        self._go.wait(self._patience)
        self.waited += time.monotonic() - began
        try:
            yield
        finally:
            self._say(OVER)
