"""Lane: one candidate of a race, its warm-up and its blocks, on the CPU and on CUDA."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from nxcore.errors import MeasurementError
from nxcore.measure.timing import Timing, duration
from nxcore.spec.device import synchronize

Clock = Callable[[], int]

SAMPLE_S = 40e-6  # five samples make a block of at least 200 us
EVENT_S = 50e-6  # shorter intervals suffer from the resolution of CUDA events
HOST_CALLS = 200
STUTTERS = 10  # attempts: a busy machine disturbs some of them, a side stream all
HOST_S = 1.5e-3  # enough calls in a row, where each takes long
COVERS = (1.25, 2.0)
"""How long the device spins, relative to the time to enqueue: at first, and after that was too short once."""
SAMPLES = ((1e-3, 5), (5e-3, 3))
"""The samples of a block: five of calls shorter than a millisecond, three of less than five, else one."""


@dataclass
class Lane:
    """One candidate in a race.

    Attributes
    ----------
    plan : callable
        What is timed.
    call : callable
        The same with the arguments of the present piece of the race.
    result : Any
        That of its last call within the piece.
    of : str
        The label of the kernel that it repeats, if it is the A/A row.
    each_s : float
        Seconds of a call, by the warm-up.
    repeats, samples : int
        Calls of a sample, and samples of a block.
    cover : float
        See ``COVERS``.
    device_us, host_us : list of float
        Microseconds of a call, block by block.
    """

    plan: Callable[..., Any]
    of: str = ""
    each_s: float = 0.0
    repeats: int = 1
    samples: int = 5
    cover: float = COVERS[0]
    device_us: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.call: Callable[[], Any] = self.plan
        self.result: Any = None

    def take(self, args: tuple[Any, ...]) -> None:
        """Call with these arguments from now on."""
        self.call = functools.partial(self.plan, *args) if args else self.plan
        self.result = None

    def note(self, us: float) -> None:
        """Note a block by one time, of the device and of the host."""
        self.device_us.append(us)
        self.host_us.append(us)

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
    floor_s = EVENT_S if device.type == "cuda" else SAMPLE_S
    lane.repeats = max(1, math.ceil(floor_s / lane.each_s))
    lane.samples = next((number for limit, number in samples if lane.each_s < limit), 1)


def cpu_block(lane: Lane, clock: Clock) -> None:
    """Run a candidate's part of a block."""
    samples, result = [], None
    for _ in range(lane.samples):
        started = clock()
        for _ in range(lane.repeats):
            result = lane.call()
        samples.append((clock() - started) / lane.repeats * 1e-3)
    lane.result = result
    lane.note(statistics.median(samples))


def cuda_block(
    device: torch.device, lane: Lane, clock: Clock, host_s: float = HOST_S, spin_s: float = math.inf
) -> None:
    """Run a candidate's part of a block on CUDA; ``host_s`` and ``spin_s`` are those of ``Effort``."""
    synchronize(device)
    if lane.samples == 1:  # such a call is long enough for both times to be read in one sample
        expected_us = lane.host_us[-1] if lane.host_us else lane.each_s * 1e6
        start, end, host_us = _cuda_sample(lane, expected_us, clock, spin_s)
        samples = [(start, end)]
    else:
        calls, started = host_calls(lane, host_s), clock()
        for _ in range(calls):
            lane.call()
        host_us = (clock() - started) / calls * 1e-3
        synchronize(device)
        samples = [_cuda_sample(lane, host_us, clock, spin_s)[:2] for _ in range(lane.samples)]
    synchronize(device)
    lane.device_us.append(statistics.median(a.elapsed_time(b) * 1e3 / lane.repeats for a, b in samples))
    lane.host_us.append(host_us)


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
