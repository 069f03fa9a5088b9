"""Sizes that were never measured: a guess from measured sizes of the same family; a pure function.

If two points bracket a problem and have the same winner, it serves the problem; if different kernels win
there, the one that is ahead of torch at both serves it. Otherwise a model of each kernel,
max(t0 + bytes / bandwidth, flops / rate) of the device and a constant of the host, is fitted and corrected by
its errors at the points nearby. The model may choose a kernel over torch's own if the predicted
gain exceeds the model's errors in cross-validation, or if the kernel was not slower at any point nearby.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nxcore.choose.estimate.model import Forecast, Point, forecasts
from nxcore.measure.decision import TIE
from nxcore.measure.timing import Timing, duration
from nxcore.spec.layout import layout_class
from nxcore.spec.problem import Problem, TensorMeta

EXACT = 64
"""Sizes below it are distinguished one by one, larger ones by half-octave."""

AGREED = 0.05
"""The factor by which the winner must be ahead at both points that bracket a problem."""

SPAN = 4.0
"""The largest distance between bracketing points by way of the problem, in octaves over all sizes."""

BEYOND = 2.0
"""The factor by which a problem may exceed the measured range, in each size and in bytes."""

APART = 6.0
"""The largest distance of a usable point in any size, in octaves."""

ALIKE = 1.25
"""The largest ratio of operations per byte between comparable problems."""

NEAREST = 24
"""The most points that are used."""

WIDEST = 16
"""The bytes of the widest load."""

LEAST = 4
"""The least number of points for cross-validation of a model."""

HOPE = 0.8
"""The quantile of the model's errors that counts as its possible error."""

SEEN = 6
"""The number of nearest points at which a kernel must not be slower than torch."""

UNPROVEN = 0.25
"""The least predicted gain without cross-validation: few points, or another device's."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The kernel that is predicted to be best for a problem that was not measured.

    Attributes
    ----------
    label : str
        The kernel's label.
    rule : str
        ``bracketed`` or ``prior``.
    reason : str
        The reason, as one sentence.
    predicted : Mapping of str to float
        Predicted microseconds, the fastest first, in order of preference; empty where bracketed.
    """

    label: str
    rule: Literal["bracketed", "prior"]
    reason: str
    predicted: Mapping[str, float]


def family(problem: Problem) -> tuple[Any, ...]:
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


def point(problem: Problem, times: Mapping[str, Timing], branches: Mapping[str, Hashable]) -> Point:
    """Return a problem as numbers; see ``Point``."""
    outputs = problem.outputs if isinstance(problem.outputs, tuple) else (problem.outputs,)
    results = sum(t.numel() for t in outputs if isinstance(t, TensorMeta))
    return Point(sizes(problem), problem.cost, times, results, _grain(problem), branches)


def _grain(problem: Problem) -> int:
    """Return the bytes of the widest aligned load at every row of every tensor."""
    strides = ((t, s) for t in problem.tensors for n, s in zip(t.shape, t.strides, strict=True) if n > 1 < s)
    return math.gcd(WIDEST, *(s * t.dtype.itemsize for t, s in strides))


def bucket(size: int) -> int:
    """Return a small size itself, and the half-octave of a larger one as a negative number."""
    return size if size < EXACT else -math.floor(2 * math.log2(size))


def guess(at: Point, points: Sequence[Point], labels: Collection[str], *, here: bool = True) -> Guess | None:
    """Return the kernel that is predicted to be best at ``at``.

    Parameters
    ----------
    at : Point
        The problem; its times are not used.
    points : sequence of Point
        The measured points, all of one device and of the family of ``at``.
    labels : collection of str
        The kernels that can serve it, torch's reference among them.
    here : bool
        Whether the points are of this device and of the present kernels; otherwise they are a prior.

    Returns
    -------
    Guess or None
        None where the points allow no guess: outside of their range, or of other kernels.
    """
    at, *hull = distinct([at, *(p for p in points if "torch" in p.times and alike(at, p))])
    if here and (found := _bracketed(at, _near(at, hull), labels)):
        return found
    hull = [p for p in hull if p.clear]
    near = _near(at, hull)
    return _modelled(at, near, hull, labels, here=here) if near and _within(at, hull) else None


def predicted(at: Point, points: Sequence[Point], labels: Collection[str]) -> dict[str, float]:
    """Return the microseconds that a model predicts for each kernel; empty where the points allow none.

    Parameters
    ----------
    at, points, labels
        As for ``guess``. A kernel without usable points has no prediction.
    """
    at, *hull = distinct([at, *(p for p in points if p.clear and "torch" in p.times and alike(at, p))])
    near = _near(at, hull)
    return _forecast(at, near, hull, labels)[1] if near and _within(at, hull) else {}


def _near(at: Point, hull: Sequence[Point]) -> list[Point]:
    return sorted((p for p in hull if _apart(at, p) <= APART), key=lambda p: distance(at, p))[:NEAREST]


def _octaves(a: Point, b: Point) -> list[float]:
    return [abs(math.log2(m / n)) if m != n else 0.0 for m, n in zip(a.sizes, b.sizes, strict=True)]


def _apart(a: Point, b: Point) -> float:
    return max(_octaves(a, b), default=0.0)


def distance(a: Point, b: Point) -> float:
    """Return the distance over all sizes, in octaves."""
    return math.hypot(*_octaves(a, b))


def distinct(points: Sequence[Point]) -> list[Point]:
    """Return points without duplicate sizes, such as the channels of both image and filter."""
    columns = dict.fromkeys(zip(*(p.sizes for p in points), strict=True))
    rows = zip(*columns, strict=True) if columns else [()] * len(points)
    return [replace(p, sizes=row) for p, row in zip(points, rows, strict=True)]


def alike(a: Point, b: Point) -> bool:
    """Return whether two problems have similar operations per byte: a larger filter has more."""
    first, second = (p.cost.flops / max(p.cost.bytes, 1) for p in (a, b))
    return first <= ALIKE * second and second <= ALIKE * first


def _within(at: Point, points: Sequence[Point]) -> bool:
    spans = zip(at.sizes, *(p.sizes for p in points), strict=True)
    each = all(min(of) / BEYOND <= size <= max(of) * BEYOND for size, *of in spans)
    work = [p.cost.bytes for p in points]
    return each and min(work) / BEYOND <= at.cost.bytes <= max(work) * BEYOND


def _between(at: Point, a: Point, b: Point) -> bool:
    """Return whether two points bracket a problem in every size and in bytes, or share its buckets.

    Small sizes must lie between theirs; large ones may be slightly outside.
    """
    if a is b:
        return [bucket(n) for n in at.sizes] == [bucket(n) for n in a.sizes]
    if not _within(at, (a, b)):
        return False
    small = ((n, *ends) for n, *ends in zip(at.sizes, a.sizes, b.sizes, strict=True) if n < EXACT)
    return all(min(ends) <= n <= max(ends) for n, *ends in small)


def _brackets(at: Point, points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Return the closest two points that bracket a problem, and others at nearly the same distance."""
    found: list[tuple[Point, Point]] = []
    limit = SPAN
    for i, far in enumerate(points):
        off = distance(at, far)
        if off > limit:
            break
        for near in (far, *points[:i]):
            if distance(at, near) + off <= SPAN and _between(at, near, far):
                found.append((near, far))
                limit = min(limit, off + 0.5)
    return found


def _bracketed(at: Point, points: Sequence[Point], labels: Collection[str]) -> Guess | None:
    pairs = _brackets(at, [p for p in points if all(p.alike(at, n) for n in at.branches if n in p.times)])
    ends = [p for pair in pairs for p in pair]
    agreed = ends and (
        set.intersection(*(_leaders(p, labels) for p in ends))
        or set.intersection(*(_ahead(p, labels) for p in ends))
    )
    if not agreed:
        return None
    best = min(agreed, key=lambda label: (sum(math.log(_us(p, label)) for p in ends), label))
    closest = pairs[0][: 1 if pairs[0][0] is pairs[0][1] else 2]
    gains = [_us(p, "torch") / _us(p, best) for p in closest]
    said = " and ".join(f"{gain:.2f}x at {_said(p)}" for gain, p in zip(gains, closest, strict=True))
    return Guess(best, "bracketed", f"measured at sizes around it, relative to torch: {said}", {})


def _leaders(point: Point, labels: Collection[str]) -> set[str]:
    """Return the kernels as good as the fastest, where torch is clearly faster or slower than them."""
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


def _ahead(point: Point, labels: Collection[str]) -> set[str]:
    """Return the kernels that are clearly faster than torch."""
    torchs = _us(point, "torch")
    return {label for label in labels if label != "torch" and _us(point, label) * (1 + AGREED) <= torchs}


def _us(point: Point, label: str) -> float:
    return point.times[label].median_us if label in point.times else math.inf


def _said(point: Point) -> str:
    return "x".join(map(str, point.sizes))


def _modelled(
    at: Point, near: Sequence[Point], points: Sequence[Point], labels: Collection[str], *, here: bool
) -> Guess:
    told, us = _forecast(at, near, points, labels)
    torchs = us["torch"]
    whose = "" if here else " on another device or by other versions"
    basis = f"predicted from {len(near)} measured sizes{whose}, not measured"
    for label, taken in us.items():
        hope = 0.0 if here and _never_slower(at, near, label) else _hope(told[label].missed)
        margin = max(AGREED if here else UNPROVEN, hope) if label != "torch" else 0.0
        if taken * (1 + margin) < torchs:
            said = f"{duration(taken)} against torch's {duration(torchs)}, model error up to {margin:.0%}"
            return Guess(label, "prior", f"{said}; {basis}", us)
    return Guess("torch", "prior", f"no kernel is clearly faster than torch; {basis}", us)


def _forecast(
    at: Point, near: Sequence[Point], points: Sequence[Point], labels: Collection[str]
) -> tuple[dict[str, Forecast], dict[str, float]]:
    """Return the forecasts, and the microseconds by them, the fastest first."""
    told = forecasts(at, near, points, labels)
    torchs = math.exp(told["torch"].log)
    us = {label: torchs * math.exp(f.log) for label, f in told.items()} | {"torch": torchs}
    return told, dict(sorted(us.items(), key=lambda item: item[1]))


def _never_slower(at: Point, points: Sequence[Point], label: str) -> bool:
    """Return whether torch wasn't clearly faster at any of the nearest points, whatever the model's error."""
    nearest = [p for p in points if label in p.times and p.alike(at, label)][:SEEN]
    return len(nearest) == SEEN and all(_us(p, label) <= _us(p, "torch") * (1 + TIE) for p in nearest)


def _hope(missed: Sequence[float]) -> float:
    """Return how much a model overestimated a kernel relative to torch, at most points."""
    if len(missed) < LEAST:
        return UNPROVEN
    ordered = sorted(max(m, 0.0) for m in missed)
    return math.expm1(ordered[math.ceil(HOPE * len(ordered)) - 1])
