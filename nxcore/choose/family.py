"""Families: problems that differ in their sizes alone, and measured sizes around another. Pure functions.

A size between two measured ones of its family is served by the kernel that clearly won both: the margin is in
the whole interval, and no measured size in between says otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nxcore.measure.decision import Decision
from nxcore.spec.layout import WIDEST, layout_class
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.spec import Cost
from nxcore.store.pages import AHEAD

FACTOR = 4.0
"""The largest ratio of a size between a family's points and a problem."""

AROUND = math.log2(FACTOR)
"""The largest distance of these points, in octaves over all sizes."""

ALIKE = 1.25
"""The largest ratio of operations per byte between comparable problems."""

NEAREST = 24
"""The most points that are compared."""


@dataclass(frozen=True, slots=True)
class Point:
    """A problem as numbers.

    Attributes
    ----------
    sizes : tuple of int
        The sizes of all arguments.
    cost : Cost
        Bytes and operations.
    grain : int
        The alignment in bytes of every row, at most 16: the widest possible load.
    branches : Mapping of str to Hashable
        The code path of a kernel by label, where the kernel reports it.
    """

    sizes: tuple[int, ...]
    cost: Cost
    grain: int = 1
    branches: Mapping[str, Hashable] = field(default_factory=dict)

    def alike(self, other: Point, label: str) -> bool:
        """Return whether a kernel takes the same code path at both points."""
        return self.branches.get(label) == other.branches.get(label)


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
        return bool(self.label) and self.ahead >= AHEAD


def end(point: Point, decision: Decision) -> End:
    """Return a measured size with its winner."""
    label = decision.chosen
    if decision.captured and decision.captured.chosen != label:
        return End(point, "")
    won = decision[label]
    if decision.rule != "measured" or won.native or not (won.ratio and won.timing):
        return End(point, label)
    return End(point, label, won.ratio.low, won.timing.median_us * (won.ratio.low - 1))


def of(problem: Problem) -> tuple[Any, ...]:
    """Return the properties that two comparable problems share: all but their sizes.

    These are ranks, dtypes, layouts, static parameters, and which dimensions have size 1 (they broadcast) or
    0.
    """
    parts = [_family(p.kind, a) for p, a in zip(problem.spec.params, problem.args, strict=True)]
    return (problem.op, problem.needs_grad, problem.aliased, *parts)


def _family(kind: str, value: Any) -> Any:
    if isinstance(value, TensorMeta):
        order = sorted(range(value.ndim), key=lambda d: -value.strides[d])
        telling = () if value.is_contiguous() else tuple((d, value.strides[d] == 0) for d in order)
        return (value.dtype, value.device.type, layout_class([value]), telling, _flat(value.shape))
    if isinstance(value, tuple) and value and isinstance(value[0], TensorMeta):
        return ("tensors", frozenset(_family(kind, v) for v in value))
    if kind == "size":
        return _flat(value if isinstance(value, tuple) else (value,))
    return repr(value)


def _flat(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(n, 2) for n in shape)


def sizes(problem: Problem) -> tuple[int, ...]:
    """Return all sizes of a problem, in order of its arguments; of a sequence the first and the length."""
    found: list[int] = []
    for param, value in zip(problem.spec.params, problem.args, strict=True):
        if isinstance(value, TensorMeta):
            found += value.shape
        elif isinstance(value, tuple) and value and isinstance(value[0], TensorMeta):
            found += (len(value), *value[0].shape)
        elif param.kind == "size":
            found += value if isinstance(value, tuple) else (value,)
    return tuple(found)


def point(problem: Problem, branches: Mapping[str, Hashable]) -> Point:
    """Return a problem as numbers; see ``Point``."""
    strides = ((t, s) for t in problem.tensors for n, s in zip(t.shape, t.strides, strict=True) if n > 1 < s)
    grain = math.gcd(WIDEST, *(s * t.dtype.itemsize for t, s in strides))
    return Point(sizes(problem), problem.cost, grain, branches)


def comparable(at: Point, other: Point) -> bool:
    """Return whether no size differs by more than ``AROUND`` octaves, nor the operations per byte by much."""
    for m, n in zip(at.sizes, other.sizes, strict=True):
        if m > FACTOR * n or n > FACTOR * m:
            return False
    first, second = (p.cost.flops / max(p.cost.bytes, 1) for p in (at, other))
    return first <= ALIKE * second and second <= ALIKE * first


def distance(a: Point, b: Point) -> float:
    """Return the distance over all sizes, in octaves."""
    return math.hypot(*(math.log2(m / n) if m != n else 0.0 for m, n in zip(a.sizes, b.sizes, strict=True)))


def enclosing(at: Point, ends: Sequence[End]) -> tuple[End, End] | None:
    """Return the nearest two measured sizes around ``at`` if one kernel clearly won them, otherwise None.

    Parameters
    ----------
    at : Point
        The problem.
    ends : sequence of End
        The ``comparable`` measured sizes of its family on this device, by the present kernels.
    """
    near = [ends[i] for _, i in sorted((distance(at, e.point), i) for i, e in enumerate(ends))[:NEAREST]]
    at, *points = _distinct([at, *(e.point for e in near)])
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


def _distinct(points: Iterable[Point]) -> list[Point]:
    """Return points without duplicate sizes, such as the channels of both image and filter."""
    points = list(points)
    columns = dict.fromkeys(zip(*(p.sizes for p in points), strict=True))
    rows = zip(*columns, strict=True) if columns else [()] * len(points)
    return [replace(p, sizes=row) for p, row in zip(points, rows, strict=True)]


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
