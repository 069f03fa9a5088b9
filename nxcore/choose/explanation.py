"""Explanation: which kernel runs a call, why, since when, and what would change the choice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from nxcore.measure.decision import MARGIN, TIE, Candidate, Decision, winners
from nxcore.measure.timing import duration
from nxcore.spec.problem import Problem

BY_RULE = {
    "pinned": "a call without backend=, which goes to the fastest kernel",
    "preferred": "a call outside of nxcore.use, which goes to the fastest kernel",
    "locked": "another lock, or NXCORE_LOCK unset",
    "family": "a measurement of this problem: nxcore tune {op}, or policy 'measure'",
    "prior": "a measurement: nxcore tune {op}, or policy 'measure'",
    "exploring": "more calls, until the fastest kernel is clear",
    "inconclusive": "a race on a less busy machine, which calls repeat; or nxcore tune {op}",
}
"""How to change a choice that isn't based on figures of the problem itself."""

AGAIN = (
    "nxcore tune {op} --again; for a call that isn't a sample, nxcore.record(FILE) around it, "
    "then nxcore tune --from-trace FILE --again"
)
"""How to race a problem again."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of figures.

    Attributes
    ----------
    policy : str
        The policy that measured them.
    date : float
        The time of measurement, in seconds since the epoch.
    versions : Mapping
        The versions of torch and the driver at that time.
    stale : str
        The changes since; empty if there are none.
    device : str
        The device's name, if it isn't this call's own.
    """

    policy: str
    date: float
    versions: Mapping[str, Any]
    stale: str = ""
    device: str = ""

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        text = f"measured {ago(time.time() - self.date)}{where} by policy {self.policy!r}"
        text += f" with torch {self.versions['torch']}" if "torch" in self.versions else ""
        return text + (f"; stale: {self.stale}" if self.stale else "")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The kernel that runs a call, and why.

    Attributes
    ----------
    problem : Problem
        The call without its data.
    decision : Decision
        The winner, the rule, the reason, and every candidate with its time or refusal.
    origin : Origin, optional
        The origin of its figures, if they are recorded.
    fixes : Mapping
        Label -> command that makes a kernel available, where the machine rejects it, not the call.
    pair : Decision, optional
        For a call with a gradient: the decision on forward and backward together, if they were measured.
    rung : str
        The rung of the ladder that answered; see "Choosing". Empty where the ladder wasn't needed.
    """

    problem: Problem
    decision: Decision
    origin: Origin | None = None
    fixes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pair: Decision | None = None
    rung: str = ""

    @property
    def change(self) -> str:
        """How to change a choice without figures of this problem; empty for others."""
        return BY_RULE.get(self.decision.rule, "").format(op=self.problem.op)

    @property
    def again(self) -> str:
        """How to measure the problem again; empty without recorded figures on this device."""
        if self.origin is None or self.origin.device:
            return ""
        return AGAIN.format(op=self.problem.op)

    @property
    def changes(self) -> dict[str, str]:
        """Label -> the change needed to choose that kernel, where it is known."""
        others = (c for c in self.decision.candidates if c.label != self.decision.chosen)
        found = {c.label: self._change(c) for c in others}
        return {label: text for label, text in found.items() if text}

    def _change(self, c: Candidate) -> str:
        if c.refusal:
            return self.fixes.get(c.label, c.refusal.reason)
        if c.simulated:
            return f"it runs in a simulator here; backend={c.backend!r} requests it"
        return needed(c, self.decision)

    def after(self, calls: int) -> Explanation:
        """Return the same, with the number of calls that torch served before there was a choice."""
        reason = f"{self.decision.reason}; calls so far: {calls}"
        return replace(self, decision=replace(self.decision, reason=reason)) if calls else self

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        return {
            "problem": self.problem.to_dict(),
            "decision": self.decision.to_dict(),
            "origin": asdict(self.origin) | {"text": str(self.origin)} if self.origin else None,
            "change": self.change,
            "changes": self.changes,
            "again": self.again,
            "pair": self.pair.to_dict() if self.pair else None,
            "rung": self.rung,
        }

    def __str__(self) -> str:
        lines = [
            f"{self.problem}",
            f"{self.decision.chosen} runs it ({self.decision.rule}): {self.decision.reason}",
        ]
        if captured := self.decision.captured:
            lines.append(f"captured: {captured.chosen} ({captured.rule}): {captured.reason}")
        if self.pair:
            lines.append(f"forward and backward together: {self.pair.chosen}: {self.pair.reason}")
        changes = self.changes
        for c in self.decision.candidates:
            change = changes.get(c.label, "")
            if c.refusal:
                what = f"not eligible: {c.refusal}"
                change = "" if change in c.refusal.reason else change
            elif c.simulated:
                what, change = "verified by simulation, never timed", ""
            elif c.timing:
                what = duration(c.timing.median_us) + (f", {c.ratio}" if c.ratio else "")
            else:
                what = "eligible, not timed"
            lines.append(f"  {c.label}: {what}" + (f"; {change}" if change else ""))
        if self.decision.noise:
            lines.append(f"  A/A noise: {self.decision.noise:.1%}")
        if self.rung:
            lines.append(f"  rung: {self.rung}")
        if self.origin:
            lines.append(f"  {self.origin}")
        if self.change:
            lines.append(f"  to change it: {self.change}")
        if self.again:
            lines.append(f"  to measure it again: {self.again}")
        return "\n".join(lines)


def needed(c: Candidate, decision: Decision) -> str:
    """Return how a timed kernel would have to change to be chosen; empty where the figures don't show it.

    It must be faster than the winner, and than torch's fastest way by the margin. There is no such text for
    torch's own.
    """
    chosen = next((k for k in decision.candidates if k.label == decision.chosen), None)
    if c.native or not (c.timing and chosen and chosen.timing):
        return ""
    margin = 1 + max(MARGIN, 2 * decision.noise)
    by = c.timing.median_us / chosen.timing.median_us
    if c.ratio and c.ratio.median:
        by = max(by, margin / c.ratio.median)
    won = c.label in {w.label for w in winners(decision.candidates)}
    if by <= 1 + TIE and won:
        return f"as fast within {TIE:.0%}; the smaller error against float64 decides"
    clear = c.p_value is None or c.ratio is None or won
    if not clear and chosen.native and c.ratio and c.ratio.high > margin:
        return f"unclear (p = {c.p_value:.2g}): a race with less noise or more blocks may decide"
    if by <= 1:
        return ""
    return f"would have to be {by - 1:.0%} faster" if by < 2 else f"would have to be {by:.1f} times as fast"


def ago(seconds: float) -> str:
    """Return an age in words."""
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if (count := int(seconds // length)) >= 1:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "less than a second ago"
