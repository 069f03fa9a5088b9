"""Explanation: who runs a call and why, as text and as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nxcore.problem import Problem
from nxcore.select import Decision


@dataclass(frozen=True, slots=True)
class Explanation:
    """Who runs a call, and why.

    Attributes
    ----------
    problem : Problem
        The call minus its data.
    decision : Decision
        Who, by which rule, why; every candidate with its time or its reason.
    """

    problem: Problem
    decision: Decision

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        return {"problem": self.problem.to_dict(), "decision": self.decision.to_dict()}

    def __str__(self) -> str:
        lines = [
            f"{self.problem}",
            f"{self.decision.chosen} runs it ({self.decision.rule}): {self.decision.reason}",
        ]
        for c in self.decision.candidates:
            if c.refusal:
                what = f"not eligible: {c.refusal}"
            elif c.simulated:
                what = "verified by simulation, never timed"
            elif c.timing:
                what = f"{c.timing.median_us:.4g} us" + (f", {c.ratio}" if c.ratio else "")
            else:
                what = "eligible, not timed"
            lines.append(f"  {c.label}: {what}")
        if self.decision.noise:
            lines.append(f"  torch against itself: within {self.decision.noise:.1%}")
        return "\n".join(lines)
