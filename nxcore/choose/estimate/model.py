"""What each kernel takes at a size that was never measured, from points where it was; pure.

A kernel is taken to keep the device busy for max(t0 + bytes / bandwidth, flops / rate), and the host for as
long as it usually does beside the others; both are corrected by what they miss at the points nearby.
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
"""How much an octave of one size counts beside one of the bytes."""


@dataclass(frozen=True, slots=True)
class Point:
    """A problem as numbers, with what each kernel took where it was measured.

    Attributes
    ----------
    sizes : tuple of int
        All sizes of its arguments.
    cost : Cost
        Bytes and operations.
    times : Mapping of str to Timing
        By label; torch's reference is ``"torch"``.
    results : int
        How many numbers the call returns.
    grain : int
        How many bytes lie side by side at a multiple of as many, wherever a row begins; 16 at most.
    branches : Mapping of str to Hashable
        By label, which of its ways a kernel takes, where it tells.
    """

    sizes: tuple[int, ...]
    cost: Cost
    times: Mapping[str, Timing]
    results: int = 1
    grain: int = 1
    branches: Mapping[str, Hashable] = field(default_factory=dict)

    def alike(self, other: Point, label: str) -> bool:
        """Return whether a kernel goes the same way here and there."""
        return self.branches.get(label) == other.branches.get(label)

    @property
    def place(self) -> tuple[float, ...]:
        """Where it lies, in octaves.

        Beside the sizes count the bytes, which is where caches and threads begin, the bytes behind each
        result, by which it is worth sharing the work on one or isn't, and how wide a load can be.
        """
        size, each = math.log2(max(self.cost.bytes, 1)), math.log2(max(self.results, 1))
        return (*(SIZE * math.log2(max(n, 1)) for n in self.sizes), size, size - each, math.log2(self.grain))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a kernel is taken to need at a place.

    Attributes
    ----------
    log : float
        The logarithm of its microseconds over torch's; of torch's own as it is.
    missed : tuple of float
        By how much that ratio was more at each point than the others tell of it, taken to where the place
        lies: the farther from the points, the more is missed.
    """

    log: float
    missed: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """How long a device is busy: ``max(t0 + bytes * per_byte, flops * per_flop)``, in microseconds."""

    t0: float
    per_byte: float
    per_flop: float

    def __call__(self, cost: Cost) -> float:
        """Return microseconds."""
        return max(self.t0 + cost.bytes * self.per_byte, cost.flops * self.per_flop)


def fit(costs: Sequence[Cost], device_us: Sequence[float]) -> Model:
    """Fit a model by least absolute relative deviations, which outliers don't pull away.

    Such a fit passes through two of the points, or through one along a boundary, so those are tried.
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
    """Return what each kernel is taken to need at a place, torch's own among them.

    Parameters
    ----------
    at : Point
        The place.
    near : sequence of Point
        What was measured nearby.
    points : sequence of Point
        All that was measured of the family. Of a kernel that never went the way there that it goes at
        ``at`` nothing is told.
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
    """Return the logarithm of what a kernel takes, and what is missed of it at each point by the others.

    A call takes as long as the slower of host and device does; the two know nothing of each other. How fast
    the host is differs from one problem to the next, for all kernels alike. So what is told of a kernel's
    host is what it takes beside that of ``pace``, which changes the least: ``usual`` of it, way by way.
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
    """Return how long a kernel's host usually takes beside another's, for each of the ways that it goes."""
    found: dict[Hashable, list[float]] = {}
    for p in points:
        if label in p.times and pace in p.times:
            found.setdefault(p.branches.get(label), []).append(_host(p, label) / _host(p, pace))
    return {branch: statistics.median(beside) for branch, beside in found.items()}


def _carried(
    around: Field, us: Sequence[float], trend: float, trends: Sequence[float]
) -> tuple[float, list[float]]:
    """Return the logarithm of a time whose trend is given, and what the others tell of each point's."""
    log, others = around.told([math.log(t / of) for t, of in zip(us, trends, strict=True)])
    return math.log(trend) + log, [math.log(of) + other for of, other in zip(trends, others, strict=True)]
