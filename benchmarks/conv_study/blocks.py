"""Times and errors of the study's entrants, measured alike whatever the toolkit.

``measure.race`` times what runs on torch's current stream. JAX has streams of its own, so here the clock is
the host's for all: until a call has returned, and until its result is there.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.conv_study.entrants import Bound
from nxcore.measure.collection import no_collection
from nxcore.spec.device import synchronize

MOST = 2000  # calls of a block
TRACED = 20  # calls under the profiler


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes
    ----------
    blocks : int
        Blocks of calls of each entrant, interleaved.
    block_s : float
        Seconds of a block.
    """

    blocks: int
    block_s: float


FULL = Effort(25, 0.01)
FAST = Effort(12, 0.008)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Times of one entrant in microseconds, a value a block.

    Attributes
    ----------
    total_us : list of float
        Until the result is there. On CUDA, of calls one after the other.
    host_us : list of float
        Until the call has returned.
    """

    total_us: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)


def timed(
    bound: Mapping[str, Bound], device: torch.device, effort: Effort, *, seed: int = 0
) -> dict[str, Blocks]:
    """Time the entrants in turns, in random order within each round."""
    calls = {label: _warm(entrant, device, effort.block_s) for label, entrant in bound.items()}
    found = {label: Blocks() for label in bound}
    order, dice = list(bound), random.Random(seed)
    run = _issued if device.type == "cuda" else _awaited
    with no_collection():
        for _ in range(effort.blocks):
            dice.shuffle(order)
            for label in order:
                # Threads of the last entrant's toolkit may still spin.
                _finish(bound[label], bound[label].call(), device)
                total, host = run(bound[label], calls[label], device)
                found[label].total_us.append(total)
                found[label].host_us.append(host)
    return found


def _finish(bound: Bound, result: object, device: torch.device) -> None:
    bound.wait(result)
    synchronize(device)


def _warm(bound: Bound, device: torch.device, seconds: float) -> int:
    """Run for ``seconds``; return the number of calls of a block."""
    _finish(bound, bound.call(), device)
    started = time.perf_counter()
    calls, spent = 0, 0.0
    while spent < seconds:
        _finish(bound, bound.call(), device)
        calls, spent = calls + 1, time.perf_counter() - started
    return min(max(3, math.ceil(seconds * calls / spent)), MOST)


def _awaited(bound: Bound, calls: int, device: torch.device) -> tuple[float, float]:
    """Return total and host time of a call, each awaited before the next: medians of a block."""
    totals, hosts = [], []
    for _ in range(calls):
        began = time.perf_counter_ns()
        result = bound.call()
        returned = time.perf_counter_ns()
        _finish(bound, result, device)
        totals.append(time.perf_counter_ns() - began)
        hosts.append(returned - began)
    return statistics.median(totals) * 1e-3, statistics.median(hosts) * 1e-3


def _issued(bound: Bound, calls: int, device: torch.device) -> tuple[float, float]:
    """Return total and host time of a call, of calls of which only the last is awaited."""
    result: object = None
    began = time.perf_counter_ns()
    for _ in range(calls):
        result = bound.call()
    returned = time.perf_counter_ns()
    _finish(bound, result, device)
    ended = time.perf_counter_ns()
    return (ended - began) / calls * 1e-3, (returned - began) / calls * 1e-3


def device_us(bound: Bound, device: torch.device) -> float | None:
    """Return the time of a call's kernels on a CUDA device, of any stream; None if none was seen."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(TRACED):
            _finish(bound, bound.call(), device)
    return of_a_call([(e.count, e.self_device_time_total) for e in seen.key_averages()], TRACED) or None


def of_a_call(kernels: Iterable[tuple[int, float]], calls: int) -> float:
    """Return the time of what every call launches, of each kernel's launches and time in all calls.

    What is launched in fewer than half of the calls is left out: nxcore's watch audits a call now and then by
    two runs of the reference, which take several times as long as the kernel. Total times have all of it.

    Examples
    --------
    >>> of_a_call([(20, 100.0), (2, 14.0)], 20)
    5.0
    """
    return sum(us / count * round(count / calls) for count, us in kernels if count)


def error(found: Tensor, exact: Tensor) -> float:
    """Return the relative error in the 2-norm; infinite if the shape differs or a value isn't finite."""
    if found.shape != exact.shape or not bool(found.isfinite().all()):
        return math.inf
    exact = exact.cpu()
    return float((found.cpu().double() - exact).norm() / exact.norm())
