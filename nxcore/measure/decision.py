"""From timings to a decision: a pure function of facts, tried on invented machines.

A candidate replaces torch's own only if the one-sided Wilcoxon signed-rank test (Wilcoxon 1945) on the
paired log ratios, shifted by a margin, gives p < 0.01 after Holm's correction (Holm 1979). The margin is
the larger of 2% and twice the half-width of the A/A row, in which torch's fastest way races itself. A race in
which that half-width exceeds 20% is unclear, whatever it says.

There are two regimes, and a winner in each: an eager call costs the slower of host and device, a replay of a
CUDA graph the device's time alone. What does not claim to be graph-safe takes no part in the second.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nxcore.measure.timing import Regime, Timing, duration
from nxcore.spec.kernel import Code, Refusal

SIGNIFICANCE = 0.01
MARGIN = 0.02
CONFIDENCE = 0.95
TIE = 0.02
NOISY = 0.20
"""The A/A noise above which a race is unclear: it tells of the machine's load, not of the kernels."""

Rule = Literal["pinned", "preferred", "locked", "measured", "bracketed", "prior", "reference", "exploring"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its order-statistic interval.

    Attributes
    ----------
    median, low, high : float
        The median and the ends of its interval of at least 95% confidence, as wide as the data forces.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a problem, and all that is known of it.

    Attributes
    ----------
    label : str
        The kernel's name in tables.
    backend : str
        The backend it belongs to.
    refusal : Refusal, optional
        Why it can't serve the call; None if it can.
    simulated : bool
        Right, but run by an interpreter or simulator: never timed, never chosen.
    graph_safe : bool
        Whether it claims that a CUDA graph may capture it.
    error : float, optional
        Relative error against float64 in the 2-norm, the worst of the smoke samples.
    timing : Timing, optional
        What it took.
    ratio : Interval, optional
        How many times faster than torch's best, block by block.
    p_value : float, optional
        Of the test that it is faster than torch's best by the margin.
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
        """Whether it is torch's own."""
        return self.backend == "torch"

    def to_dict(self) -> dict[str, Any]:
        """Return all that is known as plain data."""
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
    """Who runs, by which rule and why; every other candidate with its time or its reason.

    Attributes
    ----------
    chosen : str
        The label of the kernel that runs.
    rule : str
        ``pinned`` (``backend=``), ``preferred`` (``nxcore.use``), ``locked``, ``measured``, ``bracketed``
        (measured at sizes around it), ``prior`` (not measured: predicted, or nothing is known),
        ``reference`` or ``exploring`` (calls take turns).
    reason : str
        One sentence.
    candidates : tuple of Candidate
        In the order in which they were asked.
    noise : float
        The half-width of the A/A row: torch's fastest way against itself.
    captured : Decision, optional
        Who runs where a CUDA graph is captured, where that was asked; its candidates are these.
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
    def unclear(self) -> bool:
        """Whether it is of a race with too much noise to tell."""
        return self.noise > NOISY

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as plain data."""
        return {
            "chosen": self.chosen,
            "rule": self.rule,
            "reason": self.reason,
            "noise": self.noise,
            "candidates": [c.to_dict() for c in self.candidates],
            "captured": _brief(self.captured) if self.captured else None,
        }


def _brief(decision: Decision) -> dict[str, Any]:
    return {"chosen": decision.chosen, "rule": decision.rule, "reason": decision.reason}


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

    Zeros are dropped and ties share their ranks (Pratt's variant is not used); ranks are doubled so that
    shared ones stay whole, and the distribution is built by adding one rank at a time.
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
    pairs = zip(
        candidate.us(regime), baseline.us(regime), strict=False
    )  # a dropped candidate has fewer blocks
    return [math.log(mine / theirs) for mine, theirs in pairs]


def _half_width(native: Sequence[Candidate], again: Timing | None, regime: Regime) -> float:
    """Return the half-width of the A/A row: of the ratio of ``again`` to the first entry of the same call."""
    if again is None:
        return 0.0
    first = next((c for c in native if c.label == again.repeats), native[0]).timing
    assert first is not None  # noqa: S101  the caller looked
    found = interval([math.exp(r) for r in _log_ratios(again, first, regime)])
    return (found.high - found.low) / 2


def compare(
    candidates: Sequence[Candidate], again: Timing | None = None, regime: Regime = "eager"
) -> tuple[list[Candidate], float]:
    """Return ``candidates`` with ratio and p-value against torch's best, and the noise of the A/A row."""
    native = [c for c in candidates if c.native and c.timing and not (c.refusal or c.simulated)]
    if not native:
        return list(candidates), 0.0
    best = min(native, key=functools.partial(_median, regime))
    reference = native[0].timing
    assert reference is not None  # noqa: S101  filtered two lines above
    assert best.timing is not None  # noqa: S101
    noise = _half_width(native, again, regime)
    margin = math.log1p(max(MARGIN, 2 * noise))
    judged: list[Candidate] = []
    for c in candidates:
        # Torch's other idioms race the reference; everybody else races the fastest of torch's.
        rival = reference if c.native else best.timing
        if c.timing is None or c.refusal or c.simulated:
            judged.append(c)
            continue
        against_best = interval([math.exp(-r) for r in _log_ratios(c.timing, best.timing, regime)])
        p_value = None
        if c.timing is not rival:
            p_value = signed_rank([r + margin for r in _log_ratios(c.timing, rival, regime)])
        judged.append(replace(c, ratio=against_best, p_value=p_value))
    return judged, noise


def winners(judged: Sequence[Candidate]) -> list[Candidate]:
    """Return those that are significantly faster than torch's own, by Holm's step-down over all tested."""
    tested = sorted((c for c in judged if c.p_value is not None), key=lambda c: c.p_value or 0.0)
    won: list[Candidate] = []
    for i, c in enumerate(tested):
        if (c.p_value or 0.0) >= SIGNIFICANCE / (len(tested) - i):
            break
        won.append(c)
    return won


def settled(
    candidates: Sequence[Candidate], again: Timing | None = None, regimes: Sequence[Regime] = ("eager",)
) -> bool:
    """Return whether every verdict is clear: a win, or an interval that rules a win out.

    None is while the A/A noise is above ``NOISY``: the margin grows with it, and would rule out every win.
    """
    return all(_settled(candidates, again, regime) for regime in regimes)


def _settled(candidates: Sequence[Candidate], again: Timing | None, regime: Regime) -> bool:
    judged, noise = compare(_admitted(candidates, regime), again, regime)
    if noise > NOISY:
        return False
    won = {c.label for c in winners(judged)}
    margin = 1 + max(MARGIN, 2 * noise)
    return all(
        c.label in won or c.ratio is None or c.ratio.high < margin for c in judged if c.p_value is not None
    )


UNSAFE = Refusal(Code.CLAIM, "doesn't claim to be graph_safe")


def _admitted(candidates: Sequence[Candidate], regime: Regime) -> list[Candidate]:
    """Return ``candidates``, those refused that a CUDA graph may not capture where one is."""
    if regime == "eager":
        return list(candidates)
    return [c if c.refusal or c.graph_safe else replace(c, refusal=UNSAFE) for c in candidates]


def decide(
    candidates: Sequence[Candidate], again: Timing | None = None, regime: Regime = "eager"
) -> Decision:
    """Choose among candidates that were measured together; the first must be torch's reference.

    Parameters
    ----------
    candidates : sequence of Candidate
        With a timing, a refusal, or marked as simulated.
    again : Timing, optional
        The A/A row: the second timing of the one that it ``repeats``.
    regime : str
        ``eager``, or ``captured`` where a CUDA graph is.

    Returns
    -------
    Decision
        Anything ambiguous is torch's: the reference, or an idiom whose interval lies above it.
    """
    median = functools.partial(_median, regime)
    judged, noise = compare(_admitted(candidates, regime), again, regime)
    won = winners(judged)
    if not won:
        return _torchs(judged, noise, regime)
    fastest = min(won, key=median)
    ties = [c for c in won if median(c) <= median(fastest) * (1 + TIE)]
    best = min(ties, key=lambda c: (not c.native, math.inf if c.error is None else c.error))
    rival = min((c for c in judged if c.native and c.timing and c.label != best.label), key=median)
    reason = (
        f"{duration(median(best))} against {rival.label}'s {duration(median(rival))}: "
        f"{_ratio_to(best, rival, regime)}, p = {best.p_value:.2g}"
    )
    if best.native and (other := _closest(judged, noise, above=1.0)):
        reason += f"; {other}"
    return Decision(best.label, "measured", reason, tuple(judged), noise)


def _torchs(judged: Sequence[Candidate], noise: float, regime: Regime) -> Decision:
    """Return the decision for torch where nothing won: its fastest way, the reference where that isn't clear.

    No margin is asked of an idiom: it was verified, and with either of them torch serves.
    """
    reference, why = judged[0], _why_none(judged, noise)
    faster = [
        c for c in judged[1:] if c.native and c.ratio and reference.timing
        and _ratio_to(c, reference, regime).low > 1
    ]  # fmt: skip
    if not faster:
        return Decision(reference.label, "reference", why, tuple(judged), noise)
    best = min(faster, key=functools.partial(_median, regime))
    why = f"{_ratio_to(best, reference, regime)} the speed of torch's reference, and verified; {why}"
    return Decision(best.label, "measured", why, tuple(judged), noise)


def _ratio_to(best: Candidate, rival: Candidate, regime: Regime) -> Interval:
    assert best.timing is not None  # noqa: S101  both were measured
    assert rival.timing is not None  # noqa: S101
    return interval([math.exp(-r) for r in _log_ratios(best.timing, rival.timing, regime)])


def _median(regime: Regime, candidate: Candidate) -> float:
    return candidate.timing.median(regime) if candidate.timing else math.inf


def _why_none(judged: Sequence[Candidate], noise: float) -> str:
    found = _closest(judged, noise)
    if not found:
        return "no other backend has a kernel for this call"
    return f"nothing is measurably faster than torch; {found}"


def _closest(judged: Sequence[Candidate], noise: float, above: float = 0.0) -> str:
    """Tell of the fastest of the other backends, if it is ``above``, and what it lacks to be the winner."""
    tested = [c for c in judged if c.p_value is not None]
    closest = max((c for c in tested if not c.native and c.ratio), key=_gain, default=None)
    if closest is None or _gain(closest) < above:
        return ""
    margin, level = max(MARGIN, 2 * noise), SIGNIFICANCE / (len(tested) - len(winners(judged)))
    drift = ", twice what torch differs from itself," if noise > MARGIN / 2 else ""
    return (
        f"{closest.label} comes closest at {closest.ratio}: that it gains more than {margin:.1%}{drift} has "
        f"p = {closest.p_value:.2g}, {level:.2g} is asked"
    )


def _gain(candidate: Candidate) -> float:
    return candidate.ratio.median if candidate.ratio else 0.0


def refusals(candidates: Sequence[Candidate]) -> Mapping[str, str]:
    """Return label -> reason of those that can't serve."""
    return {c.label: c.refusal.reason for c in candidates if c.refusal}
