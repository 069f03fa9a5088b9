"""Load: whether other programs had the processors while a call was timed, and whether its time can be right.

A call of several threads takes as long as the last of them. Beside a busy program one thread waits for a
processor, and the others spin until it had one: the call takes ten times as long, or a hundred times, and
intervals show nothing, since all calls do. Linux counts for each thread the time in which it was ready and
didn't run. A sample in which no thread waited is as fast as on an idle machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nxcore.spec.spec import Cost

THREADS = Path("/proc/self/task")
"""The threads of this process, by Linux."""

LOST = 0.02
"""The share of a sample that its threads may wait for a processor; more disturbs it."""

LEAST, MOST = 0.1, 500.0
"""The shortest and the longest time of the fastest call that can be right, relative to its floor."""

COPIED, RUNS, RATE = 1 << 16, 10, 1e10
"""The bytes of the copy that the floor is measured by, how often it runs, and operations a second."""


class Reading(NamedTuple):
    """The nanoseconds that this process's threads, all together, have run and have waited so far."""

    ran: int
    waited: int


class Load:
    """Reads how long this process has run, and how long it has waited for a processor.

    Where the system doesn't count what threads wait, the time in which none of them ran is all that is known.
    ``processor`` returns the nanoseconds that the threads have run; ``threads`` has a folder for each. How
    busy the machine was ``at_start`` is in words behind a semicolon, empty if unknown.
    """

    def __init__(self, processor: Callable[[], int] = time.process_time_ns, threads: Path = THREADS) -> None:
        self._processor, self._threads = processor, threads
        self._files: dict[str, int] = {}
        self.at_start = f"; {found}" if (found := at_start()) else ""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the system's files open within this block: to open them takes longer than to read them."""
        try:
            yield
        finally:
            while self._files:
                os.close(self._files.popitem()[1])

    def read(self) -> Reading:
        """Return the sums so far."""
        try:
            waited = sum(map(self._waited, os.listdir(self._threads)))  # noqa: PTH208  a path each takes longer
        except OSError:
            waited = 0
        return Reading(self._processor(), waited)

    def lost(self, took: int, before: Reading, after: Reading) -> int:
        """Return how many of the nanoseconds between two readings others had: ``took`` of a clock's."""
        return max(0, after.waited - before.waited, took - (after.ran - before.ran))

    def fault(self, fastest_us: float, cost: Cost | None) -> str:
        """Return why the time of the fastest call can't be right; empty if it can."""
        if cost is None:
            return ""
        least, most = limits_us(cost)
        if least <= fastest_us <= most:
            return ""
        limit = f"at most {most:,.0f}" if fastest_us > most else f"at least {least:,.2f}"
        return f"the fastest call took {fastest_us:,.2f} us, and its bytes and operations take {limit}"

    def _waited(self, thread: str) -> int:
        try:
            if (file := self._files.get(thread)) is None:
                file = self._files[thread] = os.open(self._threads / thread / "schedstat", os.O_RDONLY)
            return int(os.pread(file, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):  # it has ended, or its wait isn't counted
            if (known := self._files.pop(thread, None)) is not None:
                os.close(known)
            return 0


class Unread(Load):
    """Reads nothing: of a race on a device or a clock of which the processors' time says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.at_start = ""

    def read(self) -> Reading:
        """Return no time."""
        return Reading(0, 0)

    def lost(self, *_: Any, **__: Any) -> int:
        """Return 0."""
        return 0

    def fault(self, *_: Any, **__: Any) -> str:
        """Return no fault."""
        return ""


class OfDevice(Unread):
    """Holds the times of a race on CUDA against what the device's model can do at most."""

    def fault(self, fastest_us: float, cost: Cost | None) -> str:
        """Return why the time of the fastest call can't be right; empty if it can, or if that is unknown."""
        facts = torch.cuda.get_device_properties()
        clocks = (getattr(facts, name, 0) for name in ("memory_clock_rate", "memory_bus_width", "clock_rate"))
        memory, width, clock = (float(found) for found in clocks)  # in kHz and bits
        if cost is None or not memory * width * clock:
            return ""
        moving_s = cost.bytes / (1e3 * memory * width / 4)
        computing_s = cost.flops / (1e3 * clock * facts.multi_processor_count * 16384)  # more than any has
        least_us = 1e6 * LEAST * max(moving_s, computing_s)
        if fastest_us >= least_us:
            return ""
        return (
            f"the fastest call took {fastest_us:,.2f} us, what it moves and computes {least_us:,.2f} at least"
        )


def load_of(device: str, clock: Callable[[], int]) -> Load:
    """Return what reads the load of a race on a type of device, by a clock."""
    if clock is not time.perf_counter_ns:
        return Unread()
    return OfDevice() if device == "cuda" else Load()


def at_start() -> str:
    """Return how busy the machine is, as words: how many threads want its processors; empty if unknown."""
    try:
        wanted = os.getloadavg()[0]
    except OSError:
        return ""
    return f"the load was {wanted:.1f} on {os.cpu_count()} processors when it began"


def limits_us(cost: Cost) -> tuple[float, float]:
    """Return the shortest and the longest time of a call on the CPU that can be right, in microseconds."""
    copy_s = _copy_s()
    moving_s = cost.bytes / (2 * COPIED) * copy_s
    least = LEAST * moving_s / (os.cpu_count() or 1)
    return 1e6 * least, 1e6 * MOST * (copy_s + max(moving_s, cost.flops / RATE))


@functools.cache
def _copy_s() -> float:
    """Return the seconds of a copy in a cache, on one thread: the least of some, once a process."""
    source, target = bytes(COPIED), memoryview(bytearray(COPIED))
    least = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter_ns()
        target[:] = source
        least = min(least, max(1, time.perf_counter_ns() - began) * 1e-9)
    return least
