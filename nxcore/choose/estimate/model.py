"""Forecasts of each kernel's time at a new size, from measured points; a pure function.

Model: a kernel keeps the device busy for max(t0 + bytes / bandwidth, flops / rate), and the host for its
usual time relative to other kernels. Both are corrected by their errors at the points nearby.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nxcore.choose.estimate.kriging import Field
from nxcore.measure.timing import Timing
from nxcore.spec.spec import Cost

SIZE = 0.5
"""The weight of an octave of one size, relative to an octave of the bytes."""


@dataclass(frozen=True, slots=True)
class Point:
    """A problem as numbers, with the times of each kernel.

    Attributes
    ----------
    sizes : tuple of int
        The sizes of all arguments.
    cost : Cost
        Bytes and operations.
    times : Mapping of str to Timing
        The times by label; torch's reference is ``"torch"``.
    results : int
        The number of elements that the call returns.
    grain : int
        The alignment in bytes of every row, at most 16: the widest possible load.
    branches : Mapping of str to Hashable
        The code path of a kernel by label, where the kernel reports it.
    clear : bool
        Whether the race was; of an unclear one only the winner is known, not the times.
    """

    sizes: tuple[int, ...]
    cost: Cost
    times: Mapping[str, Timing]
    results: int = 1
    grain: int = 1
    branches: Mapping[str, Hashable] = field(default_factory=dict)
    clear: bool = True

    def alike(self, other: Point, label: str) -> bool:
        """Return whether a kernel takes the same code path at both points."""
        return self.branches.get(label) == other.branches.get(label)

    @property
    def place(self) -> tuple[float, ...]:
        """The coordinates, in octaves.

        Besides the sizes these are the bytes, which determine caches and threads, the bytes per result, which
        determine whether several threads share one, and the width of a load.
        """
        size, each = math.log2(max(self.cost.bytes, 1)), math.log2(max(self.results, 1))
        return (*(SIZE * math.log2(max(n, 1)) for n in self.sizes), size, size - each, math.log2(self.grain))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted time of a kernel at a place.

    Attributes
    ----------
    log : float
        The logarithm of its time relative to torch's; for torch, of its own microseconds.
    missed : tuple of float
        The errors of that prediction at each point, from all other points, scaled by the distance of the
        place: the farther from the points, the larger the error.
    """

    log: float
    missed: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """The device time: ``max(t0 + bytes * per_byte, flops * per_flop)``, in microseconds."""

    t0: float
    per_byte: float
    per_flop: float

    def __call__(self, cost: Cost) -> float:
        """Return the device time in microseconds."""
        return max(self.t0 + cost.bytes * self.per_byte, cost.flops * self.per_flop)


def fit(costs: Sequence[Cost], device_us: Sequence[float]) -> Model:
    """Fit a model by least absolute relative deviations, which are robust against outliers.

    Such a fit passes through two of the points, or through one along a boundary, so these lines are tried.
    """
    rate = min((us / c.flops for us, c in zip(device_us, costs, strict=True) if c.flops), default=0.0)

    def off(line: tuple[float, float]) -> float:
        return sum(
            abs((line[0] + c.bytes * line[1]) / us - 1) for c, us in zip(costs, device_us, strict=True)
        )

    t0, per_byte = min(_lines([(c.bytes, us) for c, us in zip(costs, device_us, strict=True)]), key=off)
    return Model(t0, per_byte, rate)


def _lines(points: Sequence[tuple[int, float]]) -> Iterator[tuple[float, float]]:
    for i, (x, y) in enumerate(points):
        yield y, 0.0
        yield 0.0, y / max(x, 1)
        for u, v in points[:i]:
            slope = (y - v) / (x - u) if x != u else -1.0
            if slope >= 0 and (t0 := y - slope * x) >= 0:
                yield t0, slope


def forecasts(
    at: Point, near: Sequence[Point], points: Sequence[Point], labels: Collection[str]
) -> dict[str, Forecast]:
    """Return the forecast of each kernel at a place, torch's own included.

    Parameters
    ----------
    at : Point
        The place of the forecast.
    near : sequence of Point
        The measured points nearby.
    points : sequence of Point
        All measured points of the family. A kernel without a point on the code path that it takes at ``at``
        gets no forecast.
    labels : collection of str
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for label in labels:
        if known := tuple(i for i, p in enumerate(near) if label in p.times):
            groups.setdefault(known, []).append(label)
    return {
        label: found
        for known, together in groups.items()
        for label, found in _told(at, [near[i] for i in known], points, together).items()
    }


def _told(
    at: Point, near: Sequence[Point], points: Sequence[Point], labels: Sequence[str]
) -> dict[str, Forecast]:
    around = Field(at.place, [p.place for p in near])
    every = tuple(dict.fromkeys(("torch", *labels)))
    one_way = [label for label in every if label not in at.branches]
    pace = min(one_way, key=lambda label: statistics.pstdev(math.log(_host(p, label)) for p in near))
    seen = {}
    for label in every:
        usual = _usual(points if label in at.branches else near, label, pace)
        if at.branches.get(label) in usual:
            seen[label] = _seen(around, at, near, label, pace, usual)
    torchs, rest = seen["torch"]
    found = {}
    for label in (label for label in labels if label in seen):
        log, missed = seen[label]
        if label != "torch":
            log, missed = log - torchs, [m - t for m, t in zip(missed, rest, strict=True)]
        found[label] = Forecast(log, tuple(m * doubt for m, doubt in zip(missed, around.doubt, strict=True)))
    return found


def _seen(
    around: Field, at: Point, near: Sequence[Point], label: str, pace: str, usual: Mapping[Hashable, float]
) -> tuple[float, list[float]]:
    """Return the logarithm of a kernel's time, and the errors of its prediction at each point by the others.

    A call takes as long as the slower of host and device, which are independent. The host's speed differs
    from one problem to the next, for all kernels alike. So a kernel's host time is predicted relative to
    that of ``pace``, which varies least: ``usual`` holds the ratio for each code path.
    """
    times = [p.times[label] for p in near]
    device = [t.device_median_us for t in times]
    model = fit([p.cost for p in near], device)
    log, slower = _carried(around, device, model(at.cost), [model(p.cost) for p in near])
    if any(t.host_us != t.device_us for t in times):
        paces = [_host(p, pace) for p in near]
        beside = [_host(p, label) / of for p, of in zip(near, paces, strict=True)]
        share, shares = _carried(
            around, beside, usual[at.branches.get(label)], [usual[p.branches.get(label)] for p in near]
        )
        log = max(log, math.log(statistics.median(paces)) + share)
        slower = [max(d, math.log(of) + s) for d, of, s in zip(slower, paces, shares, strict=True)]
    return log, [math.log(t.median_us) - other for t, other in zip(times, slower, strict=True)]


def _host(point: Point, label: str) -> float:
    return statistics.median(point.times[label].host_us)


def _usual(points: Sequence[Point], label: str, pace: str) -> dict[Hashable, float]:
    """Return the usual ratio of a kernel's host time to another's, for each of its code paths."""
    found: dict[Hashable, list[float]] = {}
    for p in points:
        if label in p.times and pace in p.times:
            found.setdefault(p.branches.get(label), []).append(_host(p, label) / _host(p, pace))
    return {branch: statistics.median(beside) for branch, beside in found.items()}


def _carried(
    around: Field, us: Sequence[float], trend: float, trends: Sequence[float]
) -> tuple[float, list[float]]:
    """Return the logarithm of a time with a given trend, and each point's from all others."""
    log, others = around.told([math.log(t / of) for t, of in zip(us, trends, strict=True)])
    return math.log(trend) + log, [math.log(of) + other for of, other in zip(trends, others, strict=True)]
