"""From timings to a decision: a pure function of measured facts.

A candidate replaces torch's own only if the one-sided Wilcoxon signed-rank test (Wilcoxon 1945) on the
paired log ratios, shifted by the margin, gives p < 0.01 after Holm's correction (Holm 1979). The margin is
the larger of 2% and twice the A/A noise: the half-width of the A/A row, in which torch's fastest way races
itself. A race with more than 20% A/A noise has no decision, unless a kernel wins by far.

There are two regimes, each with its own winner. An eager call costs the slower of host and device, a replay
of a CUDA graph only the device's time. Kernels that don't claim to be graph-safe are left out of the second.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nxcore.errors import present
from nxcore.measure.timing import Regime, Timing, duration
from nxcore.spec.kernel import Code, Refusal

SIGNIFICANCE = 0.01
MARGIN = 0.02
CONFIDENCE = 0.95
TIE = 0.02
FAR = 1.5  # at the low end of a kernel's interval, relative to torch's speed: it wins by far
NOISY = 0.20
"""The A/A noise above which only a win by far counts: it reflects the machine's load, not the kernels."""

Rule = Literal[
    "pinned", "preferred", "locked", "measured", "family", "prior", "reference", "exploring", "inconclusive"
]


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its order-statistic interval.

    Attributes
    ----------
    median, low, high : float
        The median and the ends of its interval, with a confidence of at least 95%.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a problem, with its refusal, error and timing.

    Attributes
    ----------
    label : str
        The kernel's name in tables.
    backend : str
        The backend it belongs to.
    refusal : Refusal, optional
        Why it is rejected; None if it can serve the call.
    simulated : bool
        Verified, but run by an interpreter or simulator, so never timed and never chosen.
    graph_safe : bool
        Whether it claims to work in a captured CUDA graph.
    error : float, optional
        Relative error against float64 in the 2-norm, the worst of the smoke samples.
    timing : Timing, optional
        Its measured times.
    ratio : Interval, optional
        Its speed relative to torch's fastest way, block by block.
    p_value : float, optional
        The p-value of the test that it is faster than torch's fastest way by the margin.
    """

    label: str
    backend: str
    refusal: Refusal | None = None
    simulated: bool = False
    graph_safe: bool = False
    error: float | None = None
    timing: Timing | None = None
    ratio: Interval | None = None
    p_value: float | None = None

    @property
    def native(self) -> bool:
        """Whether it is one of torch's own implementations."""
        return self.backend == "torch"

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as plain data."""
        return {
            "label": self.label,
            "backend": self.backend,
            "refusal": str(self.refusal or ""),
            "code": str(self.refusal.code) if self.refusal else "",
            "simulated": self.simulated,
            "graph_safe": self.graph_safe,
            "error": self.error,
            "timing": self.timing.to_dict() if self.timing else None,
            "ratio": [self.ratio.median, self.ratio.low, self.ratio.high] if self.ratio else None,
            "p_value": self.p_value,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """The kernel that runs, by which rule and why; every other candidate with its time or refusal.

    Attributes
    ----------
    chosen : str
        The label of the kernel that runs.
    rule : str
        ``pinned`` (``backend=``), ``preferred`` (``nxcore.use``), ``locked``, ``measured``, ``family`` (a
        clear winner at measured sizes around it), ``prior`` (not measured, so torch), ``reference``,
        ``exploring`` (torch, until the kernels were raced) or ``inconclusive`` (others disturbed it).
    reason : str
        The reason, as one sentence.
    candidates : tuple of Candidate
        All candidates, in the order of the registry or of preference.
    noise : float
        The A/A noise: the half-width of the interval of torch's fastest way against itself.
    captured : Decision, optional
        The decision for captured calls, on devices with CUDA graphs; its candidates are the same.
    """

    chosen: str
    rule: Rule
    reason: str
    candidates: tuple[Candidate, ...] = ()
    noise: float = 0.0
    captured: Decision | None = None

    def __getitem__(self, label: str) -> Candidate:
        """Return the candidate of that label."""
        for candidate in self.candidates:
            if candidate.label == label:
                return candidate
        raise KeyError(label)

    @property
    def noisy(self) -> bool:
        """Whether the race had too much noise for a decision, and no winner by far."""
        return self.noise > NOISY and not (self.rule == "measured" and _by_far(self[self.chosen], self.noise))

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as plain data."""
        brief = ("chosen", "rule", "reason")
        return {
            "chosen": self.chosen,
            "rule": self.rule,
            "reason": self.reason,
            "noise": self.noise,
            "candidates": [c.to_dict() for c in self.candidates],
            "captured": {name: getattr(self.captured, name) for name in brief} if self.captured else None,
        }


def interval(values: Sequence[float]) -> Interval:
    """Return the median of ``values`` with its order-statistic interval (Hahn and Meeker 1991)."""
    ordered, n = sorted(values), len(values)
    tail, below = 0.0, 0
    for k in range(n // 2):
        tail += math.comb(n, k) * 0.5**n
        if tail > (1 - CONFIDENCE) / 2:
            break
        below = k
    return Interval(statistics.median(ordered), ordered[below], ordered[n - 1 - below])


def signed_rank(differences: Sequence[float]) -> float:
    """Return the exact one-sided p-value that the median of ``differences`` is below zero.

    Zeros are dropped and ties share their ranks (Pratt's variant is not used). Ranks are doubled so that
    shared ones stay integers, and the distribution is built by adding one rank at a time.
    """
    values = [d for d in differences if d != 0.0 and not math.isnan(d)]
    if not values:
        return 1.0
    ordered = sorted(abs(v) for v in values)
    doubled = {v: ordered.index(v) + 1 + len(ordered) - ordered[::-1].index(v) for v in set(ordered)}
    positive = sum(doubled[abs(v)] for v in values if v > 0)
    ways = [1]
    for v in values:
        rank = doubled[abs(v)]
        grown = [*ways, *(0,) * rank]
        for total, count in enumerate(ways):
            grown[total + rank] += count
        ways = grown
    return float(sum(ways[: positive + 1]) / 2 ** len(values))


def _log_ratios(candidate: Timing, baseline: Timing, regime: Regime) -> list[float]:
    # A dropped candidate has fewer blocks.
    pairs = zip(candidate.us(regime), baseline.us(regime), strict=False)
    return [math.log(mine / theirs) for mine, theirs in pairs]


def _half_width(native: Sequence[Candidate], again: Timing | None, regime: Regime) -> float:
    """Return the half-width of the A/A row: of ``again`` over the first timing of the same kernel."""
    if again is None:
        return 0.0
    first = next((c for c in native if c.label == again.repeats), native[0])
    found = interval([math.exp(r) for r in _log_ratios(again, present(first.timing, "first.timing"), regime)])
    return (found.high - found.low) / 2


def compare(
    candidates: Sequence[Candidate], again: Timing | None = None, regime: Regime = "eager"
) -> tuple[list[Candidate], float]:
    """Return ``candidates`` with ratio and p-value against torch's best, and the noise of the A/A row."""
    native = [c for c in candidates if c.native and c.timing and not (c.refusal or c.simulated)]
    if not native:
        return list(candidates), 0.0
    best = min(native, key=functools.partial(_median, regime))
    reference, fastest = present(native[0].timing, "reference"), present(best.timing, "best.timing")
    noise = _half_width(native, again, regime)
    margin = math.log1p(max(MARGIN, 2 * noise))
    judged: list[Candidate] = []
    for c in candidates:
        # Torch's idioms are compared with the reference; other kernels with torch's fastest way.
        rival = reference if c.native else fastest
        if c.timing is None or c.refusal or c.simulated:
            judged.append(c)
            continue
        against_best = interval([math.exp(-r) for r in _log_ratios(c.timing, fastest, regime)])
        p_value = None
        if c.timing is not rival:
            p_value = signed_rank([r + margin for r in _log_ratios(c.timing, rival, regime)])
        judged.append(replace(c, ratio=against_best, p_value=p_value))
    return judged, noise


def winners(judged: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates significantly faster than torch, by Holm's step-down over all tested."""
    tested = sorted((c for c in judged if c.p_value is not None), key=lambda c: c.p_value or 0.0)
    won: list[Candidate] = []
    for i, c in enumerate(tested):
        if (c.p_value or 0.0) >= SIGNIFICANCE / (len(tested) - i):
            break
        won.append(c)
    return won


def settled(
    candidates: Sequence[Candidate],
    again: Timing | None = None,
    regimes: Sequence[Regime] = ("eager",),
    left: Collection[str] = (),
    *,
    by_far: bool = False,
) -> bool:
    """Return whether every decision is clear: a win, no win by its interval, or it ``left`` the race.

    ``by_far``, or above ``NOISY``, wins count from ``FAR`` on, and the fastest must lead by more than a tie.
    """
    for regime in regimes:
        judged, noise = compare(_admitted(candidates, regime), again, regime)
        won, least, far = winners(judged), 1 + max(MARGIN, 2 * noise), by_far or noise > NOISY
        clear = {c.label for c in won if not far or _by_far(c, noise)} | set(left)
        open_ = (c.ratio for c in judged if c.p_value is not None and c.label not in clear)
        fast = sorted((c for c in won if not c.native), key=functools.partial(_median, regime))
        if (noise > NOISY and not fast) or any(ratio and ratio.high >= least for ratio in open_):
            return False
        if far and any(ratio_to(fast[0], c, regime).low <= 1 + max(TIE, noise) for c in fast[1:]):
            return False
    return True


def _by_far(candidate: Candidate, noise: float) -> bool:
    """Return whether even the low end of its interval is far from torch's speed, and beyond the margin."""
    return candidate.ratio is not None and candidate.ratio.low >= max(FAR, 1 + 2 * noise)


UNSAFE = Refusal(Code.CLAIM, "doesn't claim to be graph_safe")


def _admitted(candidates: Sequence[Candidate], regime: Regime) -> list[Candidate]:
    """Return ``candidates``; under capture, those that aren't graph-safe with a refusal."""
    if regime == "eager":
        return list(candidates)
    return [c if c.refusal or c.graph_safe else replace(c, refusal=UNSAFE) for c in candidates]


def decide(
    candidates: Sequence[Candidate],
    again: Timing | None = None,
    regime: Regime = "eager",
    incumbent: str = "",
) -> Decision:
    """Choose among candidates that were measured together; the first must be torch's reference.

    Parameters
    ----------
    candidates : sequence of Candidate
        With a timing, a refusal, or marked as simulated.
    again : Timing, optional
        The A/A row: the second timing of the kernel that it ``repeats``.
    regime : str
        ``eager``, or ``captured`` for calls in a CUDA graph.
    incumbent : str
        The label of the winner on record. If it wins again, another replaces it only if it is significantly
        faster by the margin, so that noise changes no choice.

    Returns
    -------
    Decision
        Torch's, if no candidate wins: the reference, or an idiom that is significantly faster.
    """
    median = functools.partial(_median, regime)
    judged, noise = compare(_admitted(candidates, regime), again, regime)
    won = winners(judged)
    if not won:
        return _torchs(judged, noise, regime, incumbent)
    fastest = min(won, key=median)
    ties = [c for c in won if median(c) <= median(fastest) * (1 + max(TIE, noise))]
    order = [c.label for c in judged]
    best = min(
        ties, key=lambda c: (not c.native, math.inf if c.error is None else c.error, order.index(c.label))
    )
    best = _held(incumbent, best, won, noise, regime)
    rival = min((c for c in judged if c.native and c.timing and c.label != best.label), key=median)
    reason = (
        f"{duration(median(best))} against {rival.label}'s {duration(median(rival))}: "
        f"{ratio_to(best, rival, regime)}, p = {best.p_value:.2g}"
    )
    if best.native and (other := _closest(judged, noise, above=1.0)):
        reason += f"; {other}"
    return Decision(best.label, "measured", reason, tuple(judged), noise)


def _held(
    incumbent: str, best: Candidate, among: Sequence[Candidate], noise: float, regime: Regime
) -> Candidate:
    """Return the incumbent if it is ``among`` the faster ones, and ``best`` isn't faster by the margin."""
    held = next((c for c in among if c.label == incumbent), best)
    mine, theirs = present(best.timing, "best.timing"), present(held.timing, "held.timing")
    margin = math.log1p(max(MARGIN, 2 * noise))
    p_value = signed_rank([r + margin for r in _log_ratios(mine, theirs, regime)])
    return best if p_value < SIGNIFICANCE else held


def _torchs(judged: Sequence[Candidate], noise: float, regime: Regime, incumbent: str) -> Decision:
    """Return the decision for torch where no kernel won: its fastest way, or the reference in doubt.

    An idiom needs no margin: it is verified, and it is torch's own code too.
    """
    reference, why = judged[0], _why_none(judged, noise)
    faster = [
        c for c in judged[1:] if c.native and c.ratio and reference.timing
        and ratio_to(c, reference, regime).low > 1
    ]  # fmt: skip
    if not faster:
        return Decision(reference.label, "reference", why, tuple(judged), noise)
    best = _held(incumbent, min(faster, key=functools.partial(_median, regime)), faster, noise, regime)
    why = f"{ratio_to(best, reference, regime)} the speed of torch's reference, verified; {why}"
    return Decision(best.label, "measured", why, tuple(judged), noise)


def ratio_to(best: Candidate, rival: Candidate, regime: Regime) -> Interval:
    """Return how many times as fast as ``rival`` a candidate is, block by block."""
    ours, theirs = present(best.timing, "best.timing"), present(rival.timing, "rival.timing")
    return interval([math.exp(-r) for r in _log_ratios(ours, theirs, regime)])


def _median(regime: Regime, candidate: Candidate) -> float:
    return candidate.timing.median(regime) if candidate.timing else math.inf


def _why_none(judged: Sequence[Candidate], noise: float) -> str:
    if found := _closest(judged, noise):
        return f"no kernel is measurably faster than torch; {found}"
    return "no kernel of another backend can run this call"


def _closest(judged: Sequence[Candidate], noise: float, above: float = 0.0) -> str:
    """Return text on the fastest other kernel, if its ratio is at least ``above``, and its test."""
    tested = [c for c in judged if c.p_value is not None]
    closest = max((c for c in tested if not c.native and c.ratio), key=_gain, default=None)
    if closest is None or _gain(closest) < above:
        return ""
    margin, level = max(MARGIN, 2 * noise), SIGNIFICANCE / (len(tested) - len(winners(judged)))
    drift = " (twice the A/A noise)" if noise > MARGIN / 2 else ""
    return (
        f"closest: {closest.label}, {closest.ratio} torch's speed. Not significantly faster by the required "
        f"{margin:.1%}{drift}: p = {closest.p_value:.2g}, needs p < {level:.2g}"
    )


def _gain(candidate: Candidate) -> float:
    return candidate.ratio.median if candidate.ratio else 0.0
