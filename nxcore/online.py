"""Learning from real calls: the first calls of a problem are its benchmark.

Calls take turns between torch's own and the candidates, in rounds of random order, so that drift hits
all alike. Each does the caller's work and is timed in place: on the CPU by a clock, on CUDA by two events
that are asked later whether they have come to pass. Nothing runs twice, nothing waits, no memory is taken.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from nxcore.measure import DROP, DROP_AFTER, Clock
from nxcore.timing import Timing

LOOKS = (12, 20, 40)
"""Rounds after which the verdicts are looked at; after the last one the exploration ends."""

HOPELESS = 10.0
"""A first time this much worse than torch's ends a candidate at once."""

Call = Callable[..., Any]
Settled = Callable[[Mapping[str, Timing]], bool]


class Exploration:
    """A call that is several: it takes turns until it is clear which of them is best.

    Parameters
    ----------
    reference : callable
        torch's own: serves whenever it is nobody's turn.
    device : torch.device
        Where the work happens.
    settled : callable
        Asked at each look: is every verdict clear?
    finished : callable
        Given the timings at the end, once; returns the call that serves from then on.
    failed : callable
        Told the label and the exception of a candidate that raised.
    clock : callable
        Nanoseconds; a test may bring its own.
    seed : int
        Of the order within rounds.
    """

    def __init__(
        self,
        reference: Call,
        device: torch.device,
        *,
        settled: Settled,
        finished: Callable[[Mapping[str, Timing]], Call],
        failed: Callable[[str, Exception], None],
        clock: Clock = time.perf_counter_ns,
        seed: int = 0,
    ) -> None:
        self.reference, self.device, self.clock = reference, device, clock
        self._settled, self._finished, self._failed = settled, finished, failed
        self._calls: dict[str, Call] = {}
        self._rounds: dict[str, list[tuple[float, float]]] = {}
        self._rivals: frozenset[str] = frozenset()
        self._order: list[str] = []
        self._pending: deque[tuple[str, float, Any, Any]] = deque()
        self._final: Call | None = None
        self._turn, self._dice = threading.Lock(), random.Random(seed)  # noqa: S311  the order of a benchmark
        self._started = 0

    def begin(self, calls: Mapping[str, Call], rivals: frozenset[str]) -> None:
        """Take turns from now on; the first of ``calls`` is torch's own, and ``rivals`` are never dropped."""
        self._rivals = rivals
        self._rounds = {label: [] for label in calls}
        self._calls = dict(calls)

    def end(self, call: Call) -> None:
        """Serve all calls by ``call`` from now on."""
        self._final = call

    @property
    def progress(self) -> tuple[int, int]:
        """The rounds that are complete, and the most there can be."""
        return min((len(r) for r in self._rounds.values()), default=0), LOOKS[-1]

    def __call__(self, *args: Any) -> Any:
        """Do the caller's work, by whoever's turn it is."""
        if self._final is not None:
            return self._final(*args)
        if not self._calls or self._capturing() or not self._turn.acquire(blocking=False):
            return self.reference(*args)
        try:
            if final := self._harvest():
                return final(*args)
            if not self._order:
                if self._started == LOOKS[-1] + 1:
                    return self.reference(*args)  # the last events have not come to pass yet
                self._order = list(self._calls)
                self._dice.shuffle(self._order)
                self._started += 1
            return self._run(self._order.pop(), args)
        finally:
            self._turn.release()

    def _run(self, label: str, args: tuple[Any, ...]) -> Any:
        call = self._calls[label]
        try:
            if self.device.type == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                began = self.clock()
                result = call(*args)
                host_us = (self.clock() - began) * 1e-3
                end.record()
                self._pending.append((label, host_us, start, end))
            else:
                began = self.clock()
                result = call(*args)
                spent_us = (self.clock() - began) * 1e-3
                self._note(label, spent_us, spent_us)
        except Exception as error:
            if label in self._rivals:
                raise
            self._drop(label)
            self._failed(label, error)
            return self.reference(*args)
        return result

    def _capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _harvest(self) -> Call | None:
        """Take the times of events that have come to pass, in order; wait for none. Return what was found."""
        while self._pending and self._pending[0][3].query():
            label, host_us, start, end = self._pending.popleft()
            if label in self._calls:
                self._note(label, start.elapsed_time(end) * 1e3, host_us)
        return self._final

    def _note(self, label: str, device_us: float, host_us: float) -> None:
        self._rounds[label].append((device_us, host_us))
        done = min(len(self._rounds[name]) for name in self._calls)
        mine = len(self._rounds[label])
        if label not in self._rivals and mine <= DROP_AFTER:
            least = min((max(t) for name in self._rivals for t in self._rounds[name]), default=float("inf"))
            if max(device_us, host_us) > HOPELESS * least and mine > 1:  # the first run warms up
                self._drop(label)
        if mine == done and done == max(len(self._rounds[name]) for name in self._calls):
            self._look(done)

    def _look(self, done: int) -> None:
        """After a whole round: drop the slow, and end where all is clear."""
        timings = self.timings
        if done == DROP_AFTER + 1:  # of which the first warmed up
            best = min(t.median_us for t in timings.values())
            for label in [
                n for n, t in timings.items() if t.median_us > DROP * best and n not in self._rivals
            ]:
                self._drop(label)
        if done - 1 in LOOKS and (done - 1 == LOOKS[-1] or self._settled(self.timings)):
            self._final = self._finished(self.timings)
            self._calls = {}

    @property
    def timings(self) -> dict[str, Timing]:
        """What each took so far, round by round, without the first one, which warms up."""
        found = {}
        for label, values in self._rounds.items():
            if kept := values[1:]:
                found[label] = Timing(tuple(v[0] for v in kept), tuple(v[1] for v in kept))
        return found

    def _drop(self, label: str) -> None:
        self._calls.pop(label, None)
        self._order = [name for name in self._order if name != label]
