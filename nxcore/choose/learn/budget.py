"""Pace: background work, limited to a share of the program's running time."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nxcore.spec.device import LOCK_S
from nxcore.spec.exits import leave

SHARE = 0.05
"""The share of the running time since the first call: of background work and races."""

ALLOWANCE_S = 1.0
"""Seconds beyond the share: to import a toolkit, to load two kernels from disk and audit their first runs."""

GRACE_S = 1.0
"""Seconds since the first call in which nothing is done: a program that is over by then pays nothing."""

READ_S = 0.02
"""Seconds between two looks at how long the main thread waited for a processor: a look takes 20 us."""


class Running:
    """A clock that stands still while the main thread waits for a processor.

    On a busy machine, or within a container's quota, a program does less in a second. Background work with
    a share of the clock's seconds would take a larger share of what the program gets. Linux counts the wait;
    elsewhere this is the monotonic clock.

    Parameters
    ----------
    clock, waited : callable
        Return seconds: of a clock, and how many of them the main thread waited for a processor.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float] | None = None,
    ) -> None:
        self._clock, self._waited = clock, waited or waited_s
        self._known, self._read = 0.0, -READ_S

    def __call__(self) -> float:
        """Return the seconds so far."""
        now = self._clock()
        if now - self._read >= READ_S:
            self._known, self._read = self._waited(), now
        return now - self._known


def waited_s() -> float:
    """Return how many seconds the main thread has waited for a processor; 0 where that isn't counted."""
    path = f"/proc/self/task/{threading.main_thread().native_id}/schedstat"
    try:
        return int(Path(path).read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def until_the_end(seconds: float) -> bool:
    """Wait, and return whether the program goes on. The end of the program ends the wait."""
    main = threading.main_thread()
    main.join(seconds)
    return main.is_alive()


class Pace:
    """Counts the cost of background work, and pauses it until the cost is within its share.

    Each second of a background thread's CPU time counts as a second of delay, since it may hold the
    interpreter's lock, or a core that torch's threads need. In ``grace`` seconds since ``begin`` nothing is
    affordable; then the ``share`` of the time is, and an ``allowance`` in seconds. ``processor`` returns the
    CPU seconds of the calling thread. ``wait`` waits, and returns whether the program goes on. Of the seconds
    ``spent`` so far, some were ``charged`` by calls. ``busy`` is held while background work runs, not while
    it rests.
    """

    def __init__(
        self,
        share: float = SHARE,
        *,
        allowance: float = 0.0,
        grace: float = 0.0,
        clock: Callable[[], float] | None = None,
        processor: Callable[[], float] = time.thread_time,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.share, self._processor, self._wait = share, processor, wait
        self._clock = clock or Running()
        self.allowance, self.grace = allowance, grace
        self.busy = threading.RLock()
        self._began: float | None = None
        _paces.add(self)
        self._mark, self.spent, self.charged, self._held = 0.0, 0.0, 0.0, -math.inf
        self._sum = threading.Lock()

    def begin(self) -> float:
        """Start to count the time, unless that was done before; return when it began."""
        if self._began is None:
            self._began = self._clock()
        return self._began

    def charge(self, seconds: float) -> None:
        """Count seconds spent elsewhere, in any thread."""
        with self._sum:
            self.spent += seconds
            self.charged += seconds

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Charge the seconds of this block."""
        began = self._clock()
        try:
            yield
        finally:
            self.charge(self._clock() - began)

    def hold(self, seconds: float) -> None:
        """Have nothing be affordable for so many seconds from now."""
        self._held = max(self._held, self._clock() + seconds)

    @property
    def affords(self) -> bool:
        """Whether the seconds spent are within the share."""
        return self.left(0.0) <= 0

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count the work within this block."""
        with self.busy:
            self._mark = self._processor()
            try:
                yield
            finally:
                self._count()

    def rest(self, ahead: float) -> None:
        """Wait until ``ahead`` more seconds of work are within the share; within ``working``.

        Raises
        ------
        SystemExit
            If the program ends during the wait; it ends this thread silently.
        """
        self._count()
        self.busy.release()
        try:
            while (left := self.left(ahead)) > 0:
                if not (self._wait or until_the_end)(left):
                    leave()
        finally:
            self.busy.acquire()
            self._mark = self._processor()

    def left(self, ahead: float) -> float:
        """Return the seconds until ``ahead`` more seconds are within the share; negative if they are."""
        began = self.begin()
        due = max((self.spent + ahead - self.allowance) / self.share, self.grace)
        return max(began + due, self._held) - self._clock()

    def anew(self) -> Pace:
        """Return a pace of the same limits that has spent nothing."""
        return Pace(self.share, allowance=self.allowance, grace=self.grace)

    def _count(self) -> None:
        now = self._processor()
        with self._sum:
            self.spent += now - self._mark
        self._mark = now


_paces: weakref.WeakSet[Pace] = weakref.WeakSet()
_held: list[Any] = []


def _before_fork() -> None:
    """Wait for background work: a child that inherits a compiler's lock would wait forever."""
    _held[:] = [pace.busy for pace in list(_paces) if pace.busy.acquire(timeout=LOCK_S)]


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class Heat:
    """How much of the program's time the calls of a problem take, by its first calls.

    Attributes
    ----------
    share : float
        The time within the calls, over the time from the first call to the end of the last one.
    """

    def __init__(self) -> None:
        self._first, self._last, self._within = 0, 0, 0

    def note(self, began: int, ended: int) -> None:
        """Count a call, which took from ``began`` to ``ended``, in nanoseconds."""
        self._first, self._last = self._first or began, ended
        self._within += ended - began

    @property
    def share(self) -> float:
        """See the class."""
        return self._within / max(1, self._last - self._first)


@dataclass(frozen=True)
class Job:
    """Background work: what to do, and the heat of its problem."""

    run: Callable[[], None]
    heat: float


class Hand:
    """Runs jobs in a thread that exists only while there are jobs: the hottest problem's first.

    Which one that is, is decided after the wait for the budget: the last to come may be the hottest. ``idle``
    is called after the last job, and ``failed`` with the exception of one. At ``most`` so many wait; beyond
    it the oldest is dropped.
    """

    def __init__(
        self,
        pace: Pace,
        *,
        idle: Callable[[], None],
        failed: Callable[[Exception], None],
        most: int,
    ) -> None:
        self.pace, self._idle, self._failed = pace, idle, failed
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque(maxlen=most)
        self.thread: threading.Thread | None = None

    def add(self, run: Callable[[], None], heat: float = 0.0) -> None:
        """Do ``run`` later, or never if the program is about to end."""
        with self._lock:
            self._jobs.append(Job(run, heat))
            if self.thread is None and threading.main_thread().is_alive():
                thread = threading.Thread(target=self._work, name="nxcore learns")
                thread.start()
                self.thread = thread  # set after the start, so that others may join it

    def _work(self) -> None:
        try:
            while self._left():
                with self.pace.working():
                    self.pace.rest(0.0)
                    try:
                        self._hottest()
                    except Exception as error:  # noqa: BLE001  the other jobs must still run
                        self._failed(error)
        except SystemExit:  # the wait is over for good
            self._jobs.clear()
            self.thread = None

    def _hottest(self) -> None:
        with self._lock:
            job = max(self._jobs, key=lambda job: job.heat)  # of equals the first
            self._jobs.remove(job)
        job.run()

    def _left(self) -> bool:
        """Return whether there is a job; without one, the thread is over."""
        if self._jobs:
            return True
        self._idle()
        with self._lock:
            if not self._jobs:
                self.thread = None
            return bool(self._jobs)
