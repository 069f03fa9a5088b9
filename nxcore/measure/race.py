"""Callables -> Timing: interleaved, paired blocks on the CPU and on CUDA.

Each candidate runs once per block, in random order, so that drift affects all alike. The value of a block is
the median of its samples. The harness knows no registry and no choice: the caller determines when to stop.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nxcore.errors import MeasurementError
from nxcore.measure.collection import no_collection
from nxcore.measure.timing import REGIMES, Timing, duration
from nxcore.spec import tally
from nxcore.spec.device import current, synchronize

ALONE: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
"""The context of a race; in a process that measures beside the program, a turn on the device."""

Clock = Callable[[], int]
Settled = Callable[[Mapping[str, Timing]], bool]

SAMPLE_S = 40e-6  # five samples make a block of at least 200 us
EVENT_S = 50e-6  # shorter intervals suffer from the resolution of CUDA events
HOST_CALLS = 200
STUTTERS = 10  # attempts: a busy machine disturbs some of them, a side stream all
HOST_S = 1.5e-3  # enough calls in a row, where each takes long
DROP = 2.0  # a candidate this much slower than the fastest after DROP_AFTER blocks is dropped
DROP_AFTER = 3
COVERS = (1.25, 2.0)
"""How long the device spins, relative to the time to enqueue: at first, and after that was too short once."""
SAMPLES = ((1e-3, 5), (5e-3, 3))
"""The samples of a block: five of calls shorter than a millisecond, three of less than five, else one."""

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
        Seconds after which no more blocks are run, once the first look is done.
    compiled : int
        The most kernels that are compiled for a problem; 0 for all.
    drops : tuple of (int, float)
        After so many blocks, candidates so many times slower than the fastest leave the race.
    early : tuple of int
        Numbers of blocks before the first of ``looks`` after which ``settled`` is called, too. A race that
        ends there must be clear by far; see ``ahead``.
    gpu_samples : tuple of (float, int)
        As ``SAMPLES``, on CUDA, where no other program disturbs a sample.
    host_s : float
        Seconds of calls in a row, on CUDA, of which a block has the host's time.
    spin_s : float
        The most seconds for which the device spins while the host enqueues a sample.
    """

    looks: tuple[int, ...] = (12, 20, 40)
    warm_s: float = 0.15
    budget_s: float = 4.0
    compiled: int = 0
    drops: tuple[tuple[int, float], ...] = ((DROP_AFTER, DROP),)
    early: tuple[int, ...] = ()
    gpu_samples: tuple[tuple[float, int], ...] = SAMPLES
    host_s: float = HOST_S
    spin_s: float = math.inf

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


@dataclass
class _Lane:
    """One candidate in a race; ``of`` is the label that the A/A row repeats."""

    call: Callable[[], Any]
    of: str = ""
    each_s: float = 0.0
    repeats: int = 1
    samples: int = 5
    cover: float = COVERS[0]
    device_us: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)

    @property
    def timing(self) -> Timing:
        return Timing(tuple(self.device_us), tuple(self.host_us), self.of)


def race(
    calls: Mapping[str, Callable[[], Any]],
    device: torch.device,
    *,
    rivals: frozenset[str] = frozenset(),
    again: str = "",
    settled: Settled = lambda _: False,
    effort: Effort = Effort(),
    clock: Clock = time.perf_counter_ns,
    seed: int = 0,
    suspect: bool = True,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Timing]:
    """Time ``calls`` against each other, in interleaved blocks.

    Parameters
    ----------
    calls : mapping of str to callable
        Label -> callable without arguments. All work must run on ``device``'s current stream.
    device : torch.device
        The device that does the work.
    rivals : frozenset of str
        Labels that all others are compared with. They are dropped only if they are slow among themselves:
        without the fastest of them no comparison would be possible.
    again : str
        Label of the A/A row: a second entry of the fastest of ``rivals`` during warm-up, or of the first
        call. Empty for none.
    settled : callable
        Called at each look; returns whether every verdict is clear.
    effort : Effort
        The number of blocks and the time budget.
    clock : callable
        Returns nanoseconds; a test may replace it.
    seed : int
        Seed of the order within blocks.
    suspect : bool
        Check that each call's work is on the current stream; the first call and ``rivals`` don't need it.
    failed : callable, optional
        Called with the label and the exception of a call that raised, which then leaves the race. Without it,
        and for the first call, the exception is raised.

    Returns
    -------
    dict of str to Timing
        One value a block; a dropped candidate has fewer. The A/A row names the kernel it ``repeats``.

    Raises
    ------
    MeasurementError
        If a call's work isn't on the current stream, so that it can't be timed.
    """
    tally.raced()
    lanes = {label: _Lane(call) for label, call in calls.items()}
    first = next(iter(lanes))
    run_block = _cpu_block
    if device.type == "cuda":
        run_block = functools.partial(_cuda_block, device, host_s=effort.host_s, spin_s=effort.spin_s)
    order, dice = list(lanes), random.Random(seed)

    def attempt(label: str, step: Callable[[str, _Lane], None]) -> None:
        try:
            step(label, lanes[label])
        except Exception as error:
            if failed is None or label == first:
                raise
            order.remove(label)
            failed(lanes.pop(label).of or label, error)

    def prepare(label: str, lane: _Lane) -> None:
        of_block = effort.gpu_samples if device.type == "cuda" else SAMPLES
        _warm_up(lane, device, effort.warm_s / len(calls), clock, of_block)
        if suspect and device.type == "cuda" and label != first and label not in rivals:
            _require_current_stream(lane, device, clock)

    with ALONE(), tally.spent("timing"), no_collection(), current(device):
        started = clock()
        for label in calls:
            attempt(label, prepare)
        if again:
            best = min((n for n in order if n in rivals or n == first), key=lambda n: lanes[n].each_s)
            lanes[again] = replace(lanes[best], of=best, device_us=[], host_us=[])
            order.append(again)
        done = 0
        for look in (*effort.early, *effort.looks):
            while done < look:
                dice.shuffle(order)
                for label in tuple(order):
                    attempt(label, lambda _, lane: run_block(lane, clock))
                done += 1
                for _, drop in (d for d in effort.drops if d[0] == done):
                    order = _in_the_race(lanes, order, rivals | {again}, drop)
            if settled({label: lane.timing for label, lane in lanes.items()}):
                break
            if look >= effort.looks[0] and (clock() - started) * 1e-9 > effort.budget_s:
                break
    return {label: lane.timing for label, lane in lanes.items()}


def left(timings: Mapping[str, Timing]) -> frozenset[str]:
    """Return the labels of those that left a race: they have fewer blocks."""
    most = max(len(t.device_us) for t in timings.values())
    return frozenset(label for label, t in timings.items() if len(t.device_us) < most)


def _in_the_race(
    lanes: Mapping[str, _Lane], order: list[str], rivals: frozenset[str], drop: float
) -> list[str]:
    first = next(iter(lanes))  # the baseline stays, since all others are compared with it
    kept = {first}
    for regime in REGIMES:  # a call that is slow on the host may be the fastest in a CUDA graph
        medians = {label: lanes[label].timing.median(regime) for label in order}
        best = min(medians.values())
        best_rival = min(medians[label] for label in order if label in rivals or label == first)
        limits = {label: drop * (best_rival if label in rivals else best) for label in order}
        kept.update(label for label in order if medians[label] <= limits[label])
    return [label for label in order if label in kept]


def _warm_up(
    lane: _Lane,
    device: torch.device,
    seconds: float,
    clock: Clock,
    samples: tuple[tuple[float, int], ...] = SAMPLES,
) -> None:
    """Run for ``seconds``, then set the number of repeats of the call in one sample."""
    lane.call()
    synchronize(device)
    started, calls = clock(), 0
    while True:
        lane.call()
        synchronize(device)
        calls += 1
        spent = (clock() - started) * 1e-9
        if spent >= seconds and calls >= 2:
            break
    each = max(spent / calls, 1e-9)
    lane.each_s = each
    lane.repeats = max(1, math.ceil((EVENT_S if device.type == "cuda" else SAMPLE_S) / each))
    lane.samples = next((number for limit, number in samples if each < limit), 1)


def _cpu_block(lane: _Lane, clock: Clock) -> None:
    samples = []
    for _ in range(lane.samples):
        started = clock()
        for _ in range(lane.repeats):
            lane.call()
        samples.append((clock() - started) / lane.repeats * 1e-3)
    lane.device_us.append(statistics.median(samples))
    lane.host_us.append(lane.device_us[-1])


def _cuda_block(
    device: torch.device, lane: _Lane, clock: Clock, host_s: float = HOST_S, spin_s: float = math.inf
) -> None:
    synchronize(device)
    if lane.samples == 1:  # such a call is long enough for both times to be read in one sample
        expected_us = lane.host_us[-1] if lane.host_us else lane.each_s * 1e6
        start, end, host_us = _cuda_sample(lane, expected_us, clock, spin_s)
        samples = [(start, end)]
    else:
        calls, started = _host_calls(lane, host_s), clock()
        for _ in range(calls):
            lane.call()
        host_us = (clock() - started) / calls * 1e-3
        synchronize(device)
        samples = [_cuda_sample(lane, host_us, clock, spin_s)[:2] for _ in range(lane.samples)]
    synchronize(device)
    lane.device_us.append(statistics.median(a.elapsed_time(b) * 1e3 / lane.repeats for a, b in samples))
    lane.host_us.append(host_us)


def _host_calls(lane: _Lane, host_s: float = HOST_S) -> int:
    """Return the number of calls whose time on the host is taken together: three at least."""
    return max(3, min(HOST_CALLS, 4 * lane.repeats + 10, math.ceil(host_s / lane.each_s)))


def _cuda_sample(
    lane: _Lane, host_us: float, clock: Clock, spin_s: float = math.inf
) -> tuple[torch.cuda.Event, torch.cuda.Event, float]:
    """Enqueue a sample; return the events around it, and the microseconds to issue one call."""
    while True:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The device spins while the host enqueues, so that the interval contains no launch gaps.
        spin_us = min(lane.cover * host_us * lane.repeats, 1e6 * spin_s)
        torch.cuda._sleep(int(spin_us * 2000))  # noqa: SLF001  cycles at about 2 GHz; the only spin torch has
        start.record()
        began = clock()
        for _ in range(lane.repeats):
            lane.call()
        issued_us = (clock() - began) / lane.repeats * 1e-3
        end.record()
        # With the longer spin a call that waits for the device is timed with its gaps.
        if not host_us or lane.cover == COVERS[-1] or not start.query():
            return start, end, issued_us
        lane.cover = COVERS[-1]


def _require_current_stream(lane: _Lane, device: torch.device, clock: Clock) -> None:
    """Refuse a call whose work runs on another stream: events on the current stream miss it.

    Such work still runs once the current stream has ended. The wall time of the whole would tell as much
    where no other program shares the device.
    """
    left, seen = math.inf, 0.0
    for _ in range(STUTTERS):
        synchronize(device)
        start, end, _ = _cuda_sample(lane, 0.0, clock)
        end.synchronize()
        ended = clock()
        synchronize(device)
        total = (clock() - ended) * 1e-3
        if total < left:
            left, seen = total, start.elapsed_time(end) * 1e3
        if left <= seen + 30 * lane.repeats + 100:
            return
    raise MeasurementError(
        f"calls took {duration(seen)} on the current stream, and the device was busy for {duration(left)} "
        "after that: their work runs on another stream"
    )
