"""Family decisions: a size between two measured ones of its family, which one kernel clearly won both.

Stricter than a guess, since nothing may ever measure that size: no model, no size beyond the measured ones,
the margin in the whole interval, and no measured size in between that says otherwise. A pure function.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nxcore.choose.estimate.model import Point
from nxcore.choose.estimate.neighbours import AGREED, NEAREST, alike, distance, distinct
from nxcore.measure.decision import Decision

AROUND = 2.0
"""The largest distance of a family's points from a problem, in octaves over all sizes."""

FACTOR = 2**AROUND


@dataclass(frozen=True, slots=True)
class End:
    """A measured size of a family.

    Attributes
    ----------
    point : Point
        The problem as numbers.
    label : str
        The kernel that won, eager and captured; empty where these differ.
    ahead : float
        Its speed relative to torch's best, by the low end of the interval; 0 where torch won.
    saves_us : float
        The microseconds that it saves at that speed.
    """

    point: Point
    label: str
    ahead: float = 0.0
    saves_us: float = 0.0

    @property
    def clear(self) -> bool:
        """Whether another kernel than torch's won by the margin."""
        return bool(self.label) and self.ahead >= 1 + AGREED


def end(point: Point, decision: Decision) -> End:
    """Return a measured size with its winner."""
    label = decision.chosen
    if decision.captured and decision.captured.chosen != label:
        return End(point, "")
    won = decision[label]
    if decision.rule != "measured" or won.native or not (won.ratio and won.timing):
        return End(point, label)
    return End(point, label, won.ratio.low, won.timing.median_us * (won.ratio.low - 1))


def comparable(at: Point, point: Point) -> bool:
    """Return whether no size differs by more than ``AROUND`` octaves, nor the operations per byte by much."""
    for m, n in zip(at.sizes, point.sizes, strict=True):
        if m > FACTOR * n or n > FACTOR * m:
            return False
    return alike(at, point)


def enclosing(at: Point, ends: Sequence[End]) -> tuple[End, End] | None:
    """Return the nearest two measured sizes around ``at`` if one kernel clearly won them, otherwise None.

    Parameters
    ----------
    at : Point
        The problem; its times are not used.
    ends : sequence of End
        The ``comparable`` measured sizes of its family on this device, by the present kernels.
    """
    near = [ends[i] for _, i in sorted((distance(at, e.point), i) for i, e in enumerate(ends))[:NEAREST]]
    at, *points = distinct([at, *(e.point for e in near)])
    placed = (replace(e, point=point) for e, point in zip(near, points, strict=True))
    around = [e for e in placed if distance(at, e.point) <= AROUND]
    # The sum of two places in the order of distance: both ends are near.
    for i, j in sorted(itertools.combinations(range(len(around)), 2), key=sum):
        a, b = sorted((around[i], around[j]), key=lambda e: e.point.cost.bytes)
        if _between(at, a.point, b.point):
            inside = [e for e in around if _between(e.point, a.point, b.point)]
            agreed = all(e.clear and e.label == a.label for e in inside)
            same = all(e.point.alike(at, a.label) for e in inside)
            # Loads as wide as at one of the ends: at another grain a kernel may be another one.
            wide = at.grain >= min(a.point.grain, b.point.grain)
            return (a, b) if agreed and same and wide else None
    return None


def _between(at: Point, a: Point, b: Point) -> bool:
    """Return whether every size of ``at`` and its bytes lie between those of two points."""
    if not min(a.cost.bytes, b.cost.bytes) <= at.cost.bytes <= max(a.cost.bytes, b.cost.bytes):
        return False
    return all(min(m, n) <= size <= max(m, n) for size, m, n in zip(at.sizes, a.sizes, b.sizes, strict=True))


def told(a: End, b: End) -> str:
    """Return the reason for a decision by two ends, as one sentence."""
    sizes = ("x".join(map(str, e.point.sizes)) for e in (a, b))
    ahead = " and ".join(f"at least {e.ahead:.2f}x at {size}" for e, size in zip((a, b), sizes, strict=True))
    return f"it won at two measured sizes of the family around this one, relative to torch: {ahead}"
