"""Explanation: who runs a call, why, since when, and what would change it; as text and as plain data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from nxcore.measure.decision import MARGIN, NOISY, TIE, Candidate, Decision, winners
from nxcore.measure.timing import duration
from nxcore.spec.problem import Problem

UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))

BY_RULE = {
    "pinned": "without backend=, whoever is fastest",
    "preferred": "outside of nxcore.use, whoever is fastest",
    "locked": "another lock, or NXCORE_LOCK unset",
    "bracketed": "a measurement of this very problem: nxcore tune {op}, or policy 'measure'",
    "prior": "a measurement: nxcore tune {op}, or policy 'measure'",
    "exploring": "more calls, until it is clear who is fastest",
}
"""What would change a choice that no figure of this problem made."""

AGAIN = (
    "nxcore tune {op} --again; for a call that is no sample, nxcore.record(FILE) around it, "
    "then nxcore tune --from-trace FILE --again"
)
"""How to race a problem again."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where figures come from.

    Attributes
    ----------
    policy : str
        By which policy they were measured.
    date : float
        Seconds since the epoch.
    versions : Mapping
        Of torch and the driver, as they were then.
    stale : str
        What changed since; empty if nothing did.
    device : str
        The device that they are of, where it isn't this call's own.
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
    """Who runs a call, and why.

    Attributes
    ----------
    problem : Problem
        The call minus its data.
    decision : Decision
        Who, by which rule, why; every candidate with its time or its reason.
    origin : Origin, optional
        Where its figures come from, if they are kept.
    fixes : Mapping
        Label -> what to type where a kernel is kept from the call by the machine, not by the call.
    """

    problem: Problem
    decision: Decision
    origin: Origin | None = None
    fixes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def change(self) -> str:
        """What would change a choice that no figure of this problem made, or noisy ones; empty for others."""
        if self.decision.unclear:
            noise = (
                f"torch differs from itself by {self.decision.noise:.0%}, and at most {NOISY:.0%} is clear"
            )
            return f"a race with less noise: {noise}"
        return BY_RULE.get(self.decision.rule, "").format(op=self.problem.op)

    @property
    def again(self) -> str:
        """How to race the problem again; empty where there are no kept figures of it on this device."""
        if self.origin is None or self.origin.device:
            return ""
        return AGAIN.format(op=self.problem.op)

    @property
    def changes(self) -> dict[str, str]:
        """Label -> what would make that kernel the choice, of all others that have an answer."""
        others = (c for c in self.decision.candidates if c.label != self.decision.chosen)
        found = {c.label: self._change(c) for c in others}
        return {label: text for label, text in found.items() if text}

    def _change(self, c: Candidate) -> str:
        if c.refusal:
            return self.fixes.get(c.label, c.refusal.reason)
        if c.simulated:
            return f"it is run by a simulator here; backend={c.backend!r} asks for it"
        return needed(c, self.decision)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        return {
            "problem": self.problem.to_dict(),
            "decision": self.decision.to_dict(),
            "origin": asdict(self.origin) | {"text": str(self.origin)} if self.origin else None,
            "change": self.change,
            "changes": self.changes,
            "again": self.again,
        }

    def __str__(self) -> str:
        lines = [
            f"{self.problem}",
            f"{self.decision.chosen} runs it ({self.decision.rule}): {self.decision.reason}",
        ]
        if captured := self.decision.captured:
            lines.append(f"captured: {captured.chosen} ({captured.rule}): {captured.reason}")
        changes = self.changes
        for c in self.decision.candidates:
            change = changes.get(c.label, "")
            if c.refusal:
                what = f"not eligible: {c.refusal}"
                change = "" if change == c.refusal.reason else change
            elif c.simulated:
                what, change = "verified by simulation, never timed", ""
            elif c.timing:
                what = duration(c.timing.median_us) + (f", {c.ratio}" if c.ratio else "")
            else:
                what = "eligible, not timed"
            lines.append(f"  {c.label}: {what}" + (f"; {change}" if change else ""))
        if self.decision.noise:
            lines.append(f"  torch against itself: within {self.decision.noise:.1%}")
        if self.origin:
            lines.append(f"  {self.origin}")
        if self.change:
            lines.append(f"  what would change it: {self.change}")
        if self.again:
            lines.append(f"  to race it again: {self.again}")
        return "\n".join(lines)


def needed(c: Candidate, decision: Decision) -> str:
    """Return what a kernel that was timed would need to be chosen; empty where figures don't tell.

    It must be faster than who was chosen, and than torch's best by the margin. Of torch's own nothing is
    asked.
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
        return f"ambiguous (p = {c.p_value:.2g}): a race with less noise or of more blocks may decide"
    if by <= 1:
        return ""
    return f"would have to be {by - 1:.0%} faster" if by < 2 else f"would have to be {by:.1f} times as fast"


def ago(seconds: float) -> str:
    """Return an age in words."""
    for unit, length in UNITS:
        if (count := int(seconds // length)) >= 1:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "less than a second ago"
