"""Callables -> Timing: interleaved, paired blocks on the CPU and on CUDA.

Each candidate runs once per block, in random order, so that drift affects all alike. The value of a block is
the median of its samples. The harness knows no registry and no choice: the caller determines when to stop.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from nxcore.errors import MeasurementError
from nxcore.measure import clock
from nxcore.measure.collection import no_collection
from nxcore.measure.lane import (
    DISTURBED,
    HOST_S,
    SAMPLES,
    Clock,
    Lane,
    cpu_block,
    cuda_block,
    fault,
    in_the_race,
    require_current_stream,
    warm_up,
)
from nxcore.measure.load import LOST, Load, load_of
from nxcore.measure.timing import Timing
from nxcore.spec import driver, tally
from nxcore.spec.device import current
from nxcore.spec.exits import RAISED, blamed
from nxcore.spec.spec import Cost

ALONE: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
"""The context of a race; in a process that measures beside the program, a turn on the device."""

Settled = Callable[[Mapping[str, Timing]], bool]

DROP, DROP_AFTER = 2.0, 3  # a candidate so much slower than the fastest after so many blocks is dropped

FIRST_S = 0.01
"""Seconds allowed to a hopeless candidate's first call besides, which may load, link or allocate."""

SPIN_S = 1e-3
"""The most seconds for which a race beside the program lets the device spin, while the program waits too."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often to measure.

    Attributes
    ----------
    looks : tuple of int
        The numbers of blocks after which ``settled`` is called.
    warm_s : float
        Seconds of warm-up.
    budget_s : float
        Seconds after which no more blocks are run, once the first look is done; a race that others disturb,
        in its warm-up too, ends then without a decision.
    compiled : int
        The most kernels that are compiled for a problem; 0 for all.
    drops : tuple of (int, float)
        After so many blocks, candidates so many times slower than the fastest leave the race.
    early : tuple of int
        Numbers of blocks before the first of ``looks`` after which ``settled`` is called, too. A race that
        ends there must be clear by far; see ``ahead``.
    samples, gpu_samples : tuple of (float, int)
        As ``SAMPLES``, on the CPU, and on CUDA, where no other program disturbs a sample.
    host_s : float
        Seconds of calls in a row, on CUDA, of which a block has the host's time.
    hopeless : float
        A candidate whose second call of the warm-up takes so many times as long as the first's call leaves
        the race; so does one whose first call takes the square of that.
    spin_s : float
        The most seconds for which the device spins while the host enqueues a sample.
    """

    looks: tuple[int, ...] = (12, 20, 40)
    warm_s: float = 0.15
    budget_s: float = 4.0
    compiled: int = 0
    drops: tuple[tuple[int, float], ...] = ((DROP_AFTER, DROP),)
    early: tuple[int, ...] = ()
    samples: tuple[tuple[float, int], ...] = SAMPLES
    gpu_samples: tuple[tuple[float, int], ...] = SAMPLES
    host_s: float = HOST_S
    spin_s: float = math.inf
    hopeless: float = math.inf

    def ahead(self, timings: Mapping[str, Timing]) -> bool:
        """Return whether a race with these timings would end before the first of ``looks``."""
        return max(len(t.device_us) for t in timings.values()) < self.looks[0]


IN_CALL = Effort(
    looks=(12, 20),
    warm_s=0.008,
    budget_s=0.5,
    compiled=2,
    early=(7, 8, 9),
    gpu_samples=((1e-4, 3), (2e-4, 2)),
    host_s=0.3e-3,
)
"""The effort for the first call of a new problem."""


class Race:
    """Calls that are timed against each other, in interleaved blocks: at once, or in pieces.

    ``calls`` are labels with callables, whose work must run on ``device``'s current stream.

    Parameters
    ----------
    rivals : frozenset of str
        Labels that all others are compared with. They are dropped only if they are slow among themselves:
        without the fastest of them no comparison would be possible.
    again : str
        Label of the A/A row: a second entry of the fastest of ``rivals`` during warm-up, or of the first
        call. Empty for none.
    settled : callable
        Called at each look; returns whether every decision is clear.
    suspect : bool
        Check that each call's work is on the current stream; the first call and ``rivals`` don't need it.
    failed : callable, optional
        Called with the label and the exception of a call that raised, which then leaves. Without it, and for
        the first call, the exception is raised.
    load : Load, optional
        Reads what others had of the processors; by default nothing on CUDA, or by another clock.
    cost : Cost, optional
        What a call must move and compute, which its time is held against.
    """

    def __init__(
        self,
        calls: Mapping[str, Callable[[], Any]],
        device: torch.device,
        rivals: frozenset[str] = frozenset(),
        again: str = "",
        settled: Settled = lambda _: False,
        effort: Effort = Effort(),
        clock: Clock = time.perf_counter_ns,
        seed: int = 0,
        suspect: bool = True,
        failed: Callable[[str, Exception], None] | None = None,
        load: Load | None = None,
        cost: Cost | None = None,
    ) -> None:
        tally.raced()
        self._lanes = {label: Lane(call) for label, call in calls.items()}
        self._first, self._device, self._rivals, self._again = next(iter(calls)), device, rivals, again
        self._settled, self._effort, self._clock = settled, effort, clock
        self._suspect, self._failed, self._cost = suspect, failed, cost
        self._load, self._cut, self._warm_lost = load or load_of(device.type, clock), False, 0
        self._order, self._dice = list(self._lanes), random.Random(seed)
        self._apart = ""
        self._cache: tuple[int | None, bytes | None] = None, None
        self.done, self._spent_s, self._began, self._steps = 0, 0.0, 0, self._blocks()

    def go(self, seconds: float = math.inf) -> bool:
        """Run blocks for so many seconds, at least a step; return whether it is over.

        A step is a call of the warm-up, or one candidate's part of a block.

        Raises
        ------
        MeasurementError
            If a call's work isn't on the current stream, so that it can't be timed, or if a function that
            times are read by was replaced.
        """
        over = self._go(seconds)
        if name := clock.replaced():
            raise MeasurementError(f"{name} was replaced by other code, and a race reads time by it")
        if self._clock is time.perf_counter_ns and self._apart:
            raise MeasurementError(self._apart)
        return over

    def _go(self, seconds: float) -> bool:
        with ALONE(), tally.spent("timing"), no_collection(), self._load.opened(), current(self._device):
            before, early, self._began, late = self._spent_s, clock.second(), self._clock(), clock.second()
            if self._device.type == "cuda":
                self._cache = driver.aside(), driver.window()
            try:
                for _ in self._steps:
                    if self._seconds - before >= seconds:
                        return False
                self._compare()
            finally:
                least = clock.second() - late
                self._spent_s = self._seconds
                took = round((self._spent_s - before) * 1e9)
                self._apart = clock.apart(took, least, clock.second() - early)
        return True

    @torch.no_grad()
    def _compare(self) -> None:
        """Have candidates leave whose last result isn't near the first one's."""
        first = self._lanes[self._first].result
        for label in [label for label in self._order if label not in (self._first, self._again)]:
            self._attempt(label, lambda _, lane: clock.held(lane.result, first))

    @property
    def timings(self) -> dict[str, Timing]:
        """One value a block; a dropped candidate has fewer. The A/A row names the kernel it ``repeats``."""
        lanes = tuple(self._lanes.values())
        lost = sum(lane.lost for lane in lanes) / max(1, sum(lane.took for lane in lanes))
        why = fault(lanes, lost, self._load, self._cost, cut=self._cut)
        timed = {label: lane.timing for label, lane in self._lanes.items() if lane.host_us}
        return {label: replace(timing, lost=lost, fault=why) for label, timing in timed.items()}

    @property
    def _seconds(self) -> float:
        """The seconds that its pieces took, within one of them."""
        return self._spent_s + (self._clock() - self._began) * 1e-9

    def _blocks(self) -> Iterator[None]:
        """Warm up, and run blocks until all is settled; yield after each step."""
        effort = self._effort
        for label in tuple(self._order):
            yield from self._warm_up(label)
            if self._cut:
                return
        if self._again:
            self._enter_again()
        for look in (*effort.early, *effort.looks):
            while self.done < look:
                self._dice.shuffle(self._order)
                for label in tuple(self._order):
                    yield from self._part(label)
                    if self._late and any(lane.disturbed for lane in self._lanes.values()):
                        self._end()
                        return
                self.done += 1
                for _, drop in (d for d in effort.drops if d[0] == self.done):
                    kept = self._rivals | {self._again}
                    self._order = in_the_race(self._lanes, self._order, kept, drop)
            if self._settled(self.timings):
                return
            if look >= effort.looks[0] and self._seconds > effort.budget_s:
                return

    def _part(self, label: str) -> Iterator[None]:
        """Run a candidate's part of a block, again while others disturb all of it and time is left."""
        lane, again = self._lanes[label], True
        while again and self._attempt(label, self._block):
            again = lane.open and self._seconds <= self._effort.budget_s
            if not again:
                lane.end_block()
            yield

    @property
    def _late(self) -> bool:
        """Whether the time is up before the first look."""
        return self._seconds > self._effort.budget_s and self.done < self._effort.looks[0]

    def _end(self) -> None:
        """End without a decision, since others disturb the race; what has no block has its warm-up's time."""
        self._cut, first = True, self._lanes[self._first]
        if not any(lane.took for lane in self._lanes.values()):
            first.took, first.lost = round(self._seconds * 1e9), self._warm_lost
        for lane in self._lanes.values():
            if lane.each_s and not lane.host_us:
                lane.note(lane.each_s * 1e6)

    def _warm_up(self, label: str) -> Iterator[None]:
        """Warm a candidate up; a hopeless one leaves the race, with that time as its only block."""
        lane, on_cuda = self._lanes[label], self._device.type == "cuda"
        of_block = self._effort.gpu_samples if on_cuda else self._effort.samples
        seconds = self._effort.warm_s / len(self._lanes)
        steps = warm_up(lane, self._device, seconds, self._clock, of_block)
        rival, limit = label == self._first or label in self._rivals, self._effort.hopeless
        own_s = self._lanes[self._first].each_s or math.inf
        limits = [limit**2 * own_s + FIRST_S, limit * own_s]
        more, quiet = True, True

        def step(_label: str, _lane: Lane) -> None:
            nonlocal more, quiet
            began, before = self._clock(), self._load.read()
            more = next(steps, label) is None
            took = self._clock() - began
            lost = min(took, self._load.lost(took, before, self._load.read()))
            quiet, self._warm_lost = lost <= LOST * took, self._warm_lost + lost

        while more:
            if not self._attempt(label, step):
                return
            yield
            if self._late and self._warm_lost > DISTURBED * self._seconds * 1e9:
                self._end()
                return
            if not rival and lane.each_s > (limits.pop(0) if limits else math.inf) and quiet:
                lane.note(lane.each_s * 1e6)
                self._order.remove(label)
                return
        if self._suspect and on_cuda and not rival:
            self._attempt(label, self._require_current_stream)

    def _enter_again(self) -> None:
        among = (n for n in self._order if n in self._rivals or n == self._first)
        best = min(among, key=lambda label: self._lanes[label].each_s)
        self._lanes[self._again] = self._lanes[best].again(best)
        self._order.append(self._again)

    def _attempt(self, label: str, step: Callable[[str, Lane], None]) -> bool:
        """Do a step; return whether the candidate is still in the race."""
        try:
            step(label, self._lanes[label])
            if self._device.type == "cuda" and (why := driver.left(self._cache)):
                raise MeasurementError(why)
        except RAISED as raised:
            error = blamed(raised)
            if self._failed is None or label == self._first:
                raise error from error.__cause__
            self._order.remove(label)
            self._failed(self._lanes.pop(label).of or label, error)
            return False
        return True

    def _require_current_stream(self, _label: str, lane: Lane) -> None:
        require_current_stream(lane, self._device, self._clock)

    def _block(self, _label: str, lane: Lane) -> None:
        if self._device.type == "cuda":
            effort, first = self._effort, self._lanes[self._first]
            cuda_block(self._device, lane, first, self._clock, host_s=effort.host_s, spin_s=effort.spin_s)
        else:
            cpu_block(lane, self._clock, self._load, lambda: self._late)


def race(calls: Mapping[str, Callable[[], Any]], device: torch.device, **how: Any) -> dict[str, Timing]:
    """Time ``calls`` against each other, in interleaved blocks, at once; ``how`` is as ``Race`` takes it.

    Returns
    -------
    dict of str to Timing
        One value a block; a dropped candidate has fewer. The A/A row names the kernel it ``repeats``. Where
        others disturbed the race too much, all have the ``fault``.

    Raises
    ------
    MeasurementError
        If a call's work isn't on the current stream, so that it can't be timed.
    """
    found = Race(calls, device, **how)
    found.go()
    return found.timings


def left(timings: Mapping[str, Timing]) -> frozenset[str]:
    """Return the labels of those that left a race: they have fewer blocks."""
    most = max(len(t.device_us) for t in timings.values())
    return frozenset(label for label, t in timings.items() if len(t.device_us) < most)
