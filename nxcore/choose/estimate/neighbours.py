"""Sizes that were never measured: from measured ones of the same family to a guess; pure.

A winner on which two bracketing points agree serves what lies between them. Elsewhere a model of each
kernel, max(t0 + bytes / bandwidth, flops / rate) of the device and a constant of the host, is fitted, and
corrected by what it misses at the points nearby. It may put a kernel before torch's own where it promises
more than it was too hopeful of when points that it was not shown were asked of it, or where that kernel was
slower nowhere near.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nxcore.choose.estimate.model import Point, forecasts
from nxcore.measure.decision import TIE
from nxcore.measure.timing import Timing, duration
from nxcore.spec.layout import layout_class
from nxcore.spec.problem import Problem, TensorMeta

EXACT = 64
"""Sizes below it are told apart one by one, those from it on in half-octaves."""

AGREED = 0.05
"""How much faster than torch a winner must be at both points that bracket a problem, or torch than all."""

AROUND = 2.0
"""Octaves, over all sizes, within which points must lie to bracket a problem."""

BEYOND = 2.0
"""How far outside the measured a problem may lie, as a factor, in every size and in bytes."""

APART = 6.0
"""Octaves that a point may be away, in any size, and still tell something."""

ALIKE = 1.25
"""How much two problems' operations per byte may differ, as a factor, for one to tell of the other."""

NEAREST = 24
"""How many points are looked at."""

WIDEST = 16
"""Bytes of the widest load."""

LEAST = 4
"""How many points must be there for a model to be tried on them."""

HOPE = 0.8
"""A model is taken to be too hopeful by as much as it was at most at this share of the points."""

SEEN = 6
"""How many of the nearest points speak for a kernel that is slower than torch at none of them."""

UNPROVEN = 0.25
"""What a model must promise at least where it can't be tried: too few points, or another device's."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Who is to serve a problem that was not measured.

    Attributes
    ----------
    label : str
        Whose kernel.
    rule : str
        ``bracketed`` or ``prior``.
    reason : str
        One sentence.
    predicted : Mapping of str to float
        Microseconds by the model, the fastest first: the order in which to try; empty where bracketed.
    """

    label: str
    rule: Literal["bracketed", "prior"]
    reason: str
    predicted: Mapping[str, float]


def family(problem: Problem) -> tuple[Any, ...]:
    """Return what two problems must share for one to tell of the other: all but their sizes.

    Ranks, dtypes, layouts, static parameters, and which dimensions are of size 1 or empty: those broadcast.
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
    """Return all sizes of a problem, in order of its arguments; a sequence counts once, with its length."""
    found: list[int] = []
    for param, value in zip(problem.spec.params, problem.args, strict=True):
        if isinstance(value, TensorMeta):
            found += value.shape
        elif isinstance(value, tuple) and value and isinstance(value[0], TensorMeta):
            found += (len(value), *value[0].shape)
        elif param.kind == "size":
            found += value if isinstance(value, tuple) else (value,)
    return tuple(found)


def point(problem: Problem, times: Mapping[str, Timing], branches: Mapping[str, Hashable]) -> Point:
    """Return a problem as numbers; see ``Point``."""
    outputs = problem.outputs if isinstance(problem.outputs, tuple) else (problem.outputs,)
    results = sum(t.numel() for t in outputs if isinstance(t, TensorMeta))
    return Point(sizes(problem), problem.cost, times, results, _grain(problem), branches)


def _grain(problem: Problem) -> int:
    """Return the bytes of the widest load that begins at every row of every tensor."""
    strides = ((t, s) for t in problem.tensors for n, s in zip(t.shape, t.strides, strict=True) if n > 1 < s)
    return math.gcd(WIDEST, *(s * t.dtype.itemsize for t, s in strides))


def bucket(size: int) -> int:
    """Return a size itself where it is small, else the half-octave that it is in, below zero."""
    return size if size < EXACT else -math.floor(2 * math.log2(size))


def guess(at: Point, points: Sequence[Point], labels: Collection[str], *, here: bool = True) -> Guess | None:
    """Say who is to serve ``at``.

    Parameters
    ----------
    at : Point
        The problem; its times are not looked at.
    points : sequence of Point
        What was measured, all of one device and of the family of ``at``.
    labels : collection of str
        Who can serve it, torch's reference among them.
    here : bool
        The points are of this device and of the kernels as they are now; else they are no more than a prior.

    Returns
    -------
    Guess or None
        None where the points say nothing: beyond their hull, or of others.
    """
    at, *hull = _distinct([at, *(p for p in points if "torch" in p.times and _alike(at, p))])
    near = sorted((p for p in hull if _apart(at, p) <= APART), key=lambda p: _distance(at, p))[:NEAREST]
    if here and (found := _bracketed(at, near, labels)):
        return found
    return _modelled(at, near, hull, labels, here=here) if near and _within(at, hull) else None


def _octaves(a: Point, b: Point) -> list[float]:
    return [abs(math.log2(m / n)) if m != n else 0.0 for m, n in zip(a.sizes, b.sizes, strict=True)]


def _apart(a: Point, b: Point) -> float:
    return max(_octaves(a, b), default=0.0)


def _distance(a: Point, b: Point) -> float:
    return math.hypot(*_octaves(a, b))


def _distinct(points: Sequence[Point]) -> list[Point]:
    """Return points whose sizes are told once where all have them twice, as channels in image and filter."""
    columns = dict.fromkeys(zip(*(p.sizes for p in points), strict=True))
    rows = zip(*columns, strict=True) if columns else [()] * len(points)
    return [replace(p, sizes=row) for p, row in zip(points, rows, strict=True)]


def _alike(a: Point, b: Point) -> bool:
    """Return whether two problems do as much with each byte: a larger filter is another kind of work."""
    first, second = (p.cost.flops / max(p.cost.bytes, 1) for p in (a, b))
    return first <= ALIKE * second and second <= ALIKE * first


def _within(at: Point, points: Sequence[Point]) -> bool:
    spans = zip(at.sizes, *(p.sizes for p in points), strict=True)
    each = all(min(of) / BEYOND <= size <= max(of) * BEYOND for size, *of in spans)
    work = [p.cost.bytes for p in points]
    return each and min(work) / BEYOND <= at.cost.bytes <= max(work) * BEYOND


def _between(at: Point, a: Point, b: Point) -> bool:
    """Return whether two points bracket a problem: in every size and in bytes, or in the same buckets as one.

    Small sizes must lie between theirs; large ones may be a little beyond.
    """
    if a is b:
        return [bucket(n) for n in at.sizes] == [bucket(n) for n in a.sizes]
    if not _within(at, (a, b)):
        return False
    small = ((n, *ends) for n, *ends in zip(at.sizes, a.sizes, b.sizes, strict=True) if n < EXACT)
    return all(min(ends) <= n <= max(ends) for n, *ends in small)


def _brackets(at: Point, points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Return the closest two points that bracket a problem, and any others that are hardly farther away."""
    found: list[tuple[Point, Point]] = []
    limit = AROUND
    for i, far in enumerate(points):
        if _distance(at, far) > limit:
            break
        for near in (far, *points[:i]):
            if _between(at, near, far):
                found.append((near, far))
                limit = min(limit, _distance(at, far) + 0.5)
    return found


def _bracketed(at: Point, points: Sequence[Point], labels: Collection[str]) -> Guess | None:
    pairs = _brackets(at, [p for p in points if all(p.alike(at, n) for n in at.branches if n in p.times)])
    ends = [p for pair in pairs for p in pair]
    agreed = set.intersection(*(_leaders(p, labels) for p in ends)) if ends else set()
    if not agreed:
        return None
    best = min(agreed, key=lambda label: sum(math.log(_us(p, label)) for p in ends))
    closest = pairs[0][: 1 if pairs[0][0] is pairs[0][1] else 2]
    gains = [_us(p, "torch") / _us(p, best) for p in closest]
    said = " and ".join(f"{gain:.2f}x at {_said(p)}" for gain, p in zip(gains, closest, strict=True))
    return Guess(best, "bracketed", f"measured at sizes around it, beside torch: {said}", {})


def _leaders(point: Point, labels: Collection[str]) -> set[str]:
    """Return who is as good as the fastest, where torch clearly beats all or is clearly beaten."""
    torchs = _us(point, "torch")
    others = {label: us for label in labels if label != "torch" and (us := _us(point, label)) < math.inf}
    fastest = min(others.values(), default=math.inf)
    if torchs * (1 + AGREED) <= fastest:
        return {"torch"}
    return (
        {n for n, us in others.items() if us <= fastest * (1 + TIE)}
        if fastest * (1 + AGREED) <= torchs
        else set()
    )


def _us(point: Point, label: str) -> float:
    return point.times[label].median_us if label in point.times else math.inf


def _said(point: Point) -> str:
    return "x".join(map(str, point.sizes))


def _modelled(
    at: Point, near: Sequence[Point], points: Sequence[Point], labels: Collection[str], *, here: bool
) -> Guess:
    told = forecasts(at, near, points, labels)
    torchs = math.exp(told["torch"].log)
    us = {label: torchs * math.exp(f.log) for label, f in told.items()} | {"torch": torchs}
    predicted = dict(sorted(us.items(), key=lambda item: item[1]))
    whose = "" if here else " on another device or by other versions"
    basis = f"predicted from {len(near)} measured sizes{whose}, not measured"
    for label, taken in predicted.items():
        hope = 0.0 if here and _never_slower(at, near, label) else _hope(told[label].missed)
        margin = max(AGREED if here else UNPROVEN, hope) if label != "torch" else 0.0
        if taken * (1 + margin) < torchs:
            said = f"{duration(taken)} against torch's {duration(torchs)}, of which {margin:.0%} may be hope"
            return Guess(label, "prior", f"{said}; {basis}", predicted)
    return Guess("torch", "prior", f"nothing is clearly faster than torch; {basis}", predicted)


def _never_slower(at: Point, points: Sequence[Point], label: str) -> bool:
    """Return whether torch wasn't clearly faster at any of the nearest points, whatever the model's error."""
    nearest = [p for p in points if label in p.times and p.alike(at, label)][:SEEN]
    return len(nearest) == SEEN and all(_us(p, label) <= _us(p, "torch") * (1 + TIE) for p in nearest)


def _hope(missed: Sequence[float]) -> float:
    """Return by what share a model was too hopeful of a kernel beside torch, at most, at most points."""
    if len(missed) < LEAST:
        return UNPROVEN
    ordered = sorted(max(m, 0.0) for m in missed)
    return math.expm1(ordered[math.ceil(HOPE * len(ordered)) - 1])
