"""Lane: one candidate of a race, its warm-up and its blocks, on the CPU and on CUDA."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nxcore.errors import MeasurementError
from nxcore.measure import clock as clocks
from nxcore.measure.load import LOST, Load
from nxcore.measure.timing import REGIMES, Timing, duration
from nxcore.spec.device import synchronize
from nxcore.spec.spec import Cost

Clock = Callable[[], int]

SAMPLE_S = 40e-6  # five samples make a block of at least 200 us
EVENT_S = 50e-6  # shorter intervals suffer from the resolution of CUDA events
HOST_CALLS = 200
STUTTERS = 10  # attempts: a busy machine disturbs some of them, a side stream all
HOST_S = 1.5e-3  # enough calls in a row, where each takes long
COVERS = (1.25, 2.0)
"""How long the device spins, relative to the time to enqueue: at first, and after that was too short once."""
DISTURBED = 0.25
"""The share of a candidate's blocks that others may disturb wholly: medians bear that."""
SAMPLES = ((1e-3, 5), (5e-3, 3))
"""The samples of a block: five of calls shorter than a millisecond, three of less than five, else one."""


@dataclass
class Lane:
    """One candidate in a race.

    ``of`` is the label of the kernel that it repeats, if it is the A/A row. A call takes ``each_s`` by the
    warm-up; the ``repeats`` of a sample and ``samples`` of a block follow from it, from the ``least_s`` of a
    sample and ``sizes``, as ``SAMPLES``. ``clear_us`` and ``slow_us`` are the samples of the present block
    that others didn't disturb, and those that they did; ``disturbed`` blocks have none of the former.
    ``took`` and ``lost`` are nanoseconds of all samples, and how many of them others had the processors.
    By the device's clock, ``apart`` blocks took much less than by the host's.
    """

    call: Callable[[], Any]
    of: str = ""
    each_s: float = 0.0
    repeats: int = 1
    samples: int = 5
    least_s: float = SAMPLE_S
    sizes: tuple[tuple[float, int], ...] = SAMPLES
    cover: float = COVERS[0]
    device_us: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    clear_us: list[float] = field(default_factory=list)
    slow_us: list[float] = field(default_factory=list)
    disturbed: int = 0
    took: int = 0
    lost: int = 0
    apart: int = 0
    result: Any = None

    def note(self, us: float) -> None:
        """Note a block by one time, of the device and of the host."""
        self.device_us.append(us)
        self.host_us.append(us)

    @property
    def open(self) -> bool:
        """Whether its present block has samples, all of which others disturbed."""
        return bool(self.slow_us) and not self.clear_us

    def again(self, label: str) -> Lane:
        """Return an entry of the same call without blocks: the A/A row, which repeats that label's."""
        return Lane(self.call, label, self.each_s, self.repeats, self.samples, self.least_s, self.sizes)

    def end_block(self) -> None:
        """Note the median of the block's undisturbed samples, the least of the others where there is none.

        On CUDA there are no such samples: its blocks are noted at once.
        """
        if not (self.clear_us or self.slow_us):
            return
        if not self.clear_us:
            self.disturbed += 1
        elif (us := statistics.median(self.clear_us)) < 0.5e6 * self.each_s:  # the warm-up was disturbed
            self.divide(us * 1e-6)
        self.note(statistics.median(self.clear_us) if self.clear_us else min(self.slow_us))
        self.clear_us, self.slow_us = [], []

    def divide(self, each_s: float) -> None:
        """Set how samples and blocks are made of calls that take so long."""
        self.each_s = each_s
        self.repeats = max(1, math.ceil(self.least_s / each_s))
        self.samples = next((number for limit, number in self.sizes if each_s < limit), 1)

    @property
    def timing(self) -> Timing:
        """Its times so far."""
        return Timing(tuple(self.device_us), tuple(self.host_us), self.of)


def warm_up(
    lane: Lane,
    device: torch.device,
    seconds: float,
    clock: Clock,
    samples: tuple[tuple[float, int], ...] = SAMPLES,
) -> Iterator[None]:
    """Run for ``seconds``, a call a step, and set the number of repeats of the call in one sample."""
    spent, calls = 0.0, -1  # the first call may load, link or allocate
    while True:
        started = clock()
        lane.result = lane.call()
        synchronize(device)
        took, calls = (clock() - started) * 1e-9, calls + 1
        spent += took if calls else 0.0
        lane.each_s = max(spent / calls if calls else took, 1e-9)
        if spent >= seconds and calls >= 2:
            break
        yield
    lane.least_s, lane.sizes = EVENT_S if device.type == "cuda" else SAMPLE_S, samples
    lane.divide(lane.each_s)


def cpu_block(lane: Lane, clock: Clock, load: Load, late: Callable[[], bool] = lambda: False) -> None:
    """Run samples of a candidate's part of a block, which ``Lane.end_block`` ends.

    Once it is ``late``, a sample that others disturbed is the last one.
    """
    before, result = load.read(), None
    for _ in range(lane.samples):
        started = clock()
        for _ in range(lane.repeats):
            result = lane.call()
        took = clock() - started
        after = load.read()
        lost = min(took, load.lost(took, before, after))
        (lane.clear_us if lost <= LOST * took else lane.slow_us).append(took / lane.repeats * 1e-3)
        lane.took, lane.lost, before = lane.took + took, lane.lost + lost, after
        if lane.slow_us and late():
            break
    lane.result = result


def cuda_block(
    device: torch.device,
    lane: Lane,
    first: Lane,
    clock: Clock,
    host_s: float = HOST_S,
    spin_s: float = math.inf,
) -> None:
    """Run a candidate's part of a block on CUDA; ``host_s`` and ``spin_s`` are those of ``Effort``.

    Raise if the clocks of host and device disagree on five of its blocks, and on none of the ``first`` one's.
    """
    synchronize(device)
    if lane.samples == 1:  # such a call is long enough for both times to be read in one sample
        expected_us = lane.host_us[-1] if lane.host_us else lane.each_s * 1e6
        start, end, host_us = _cuda_sample(lane, expected_us, clock, spin_s)
        samples, calls, all_us = [(start, end)], 1, 0.0
    else:
        calls, started = host_calls(lane, host_s), clock()
        for _ in range(calls):
            lane.call()
        host_us = (clock() - started) / calls * 1e-3
        synchronize(device)
        all_us = (clock() - started) * 1e-3
        samples = [_cuda_sample(lane, host_us, clock, spin_s)[:2] for _ in range(lane.samples)]
    synchronize(device)
    lane.device_us.append(statistics.median(a.elapsed_time(b) * 1e3 / lane.repeats for a, b in samples))
    lane.host_us.append(host_us)
    # The device works on what was issued, so the host's clock has no more than both times, but for the wait.
    longest_us = clocks.AGREE * calls * (host_us + lane.device_us[-1]) + 100
    lane.apart += all_us > longest_us
    if lane.apart >= 5 and not first.apart:  # others' work on the device disturbs the first one's too
        raise MeasurementError(f"{calls} calls took {duration(all_us)}, and by the device's events much less")


def host_calls(lane: Lane, host_s: float = HOST_S) -> int:
    """Return the number of calls whose time on the host is taken together: three at least."""
    return max(3, min(HOST_CALLS, 4 * lane.repeats + 10, math.ceil(host_s / lane.each_s)))


def _cuda_sample(
    lane: Lane, host_us: float, clock: Clock, spin_s: float = math.inf
) -> tuple[torch.cuda.Event, torch.cuda.Event, float]:
    """Enqueue a sample; return the events around it, and the microseconds to issue one call."""
    while True:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The device spins while the host enqueues, so that the interval contains no launch gaps.
        spin_us = min(lane.cover * host_us * lane.repeats, 1e6 * spin_s)
        torch.cuda._sleep(int(spin_us * 2000))  # noqa: SLF001  cycles at about 2 GHz; the only spin torch has
        start.record()
        began, result = clock(), None
        for _ in range(lane.repeats):
            result = lane.call()
        issued_us = (clock() - began) / lane.repeats * 1e-3
        end.record()
        lane.result = result
        # With the longer spin a call that waits for the device is timed with its gaps.
        if not host_us or lane.cover == COVERS[-1] or not start.query():
            return start, end, issued_us
        lane.cover = COVERS[-1]


def require_current_stream(lane: Lane, device: torch.device, clock: Clock) -> None:
    """Refuse a call whose work runs on another stream: events on the current stream miss it.

    Such work still runs once the current stream has ended. The wall time of the whole would show that too
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


def fault(lanes: Sequence[Lane], lost: float, load: Load, cost: Cost | None, *, cut: bool) -> str:
    """Return why the times of a race say nothing; empty if they do.

    Others had the processors in the share ``lost`` of its time; it is ``cut`` if they ended it before its
    first look. A call's ``cost`` is what it must move and compute.
    """
    timed = [lane for lane in lanes if lane.host_us]
    if cut or any(lane.disturbed > DISTURBED * len(lane.host_us) for lane in timed):
        return f"for {lost:.0%} of its time others had the processors{load.at_start}"
    fastest_us = min((statistics.median(lane.device_us) for lane in timed), default=0.0)
    return load.fault(fastest_us, cost) if timed else ""


def in_the_race(
    lanes: Mapping[str, Lane], order: list[str], rivals: frozenset[str], drop: float
) -> list[str]:
    """Return the labels that stay in a race: of the others ``order`` has the times so far."""
    first = next(iter(lanes))  # the baseline stays, since all others are compared with it
    kept = {first}
    for regime in REGIMES:  # a call that is slow on the host may be the fastest in a CUDA graph
        medians = {label: lanes[label].timing.median(regime) for label in order}
        best = min(medians.values())
        best_rival = min(medians[label] for label in order if label in rivals or label == first)
        limits = {label: drop * (best_rival if label in rivals else best) for label in order}
        kept.update(label for label in order if medians[label] <= limits[label])
    return [label for label in order if label in kept]
