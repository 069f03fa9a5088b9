"""Busy: a race that other programs disturbed, or that is too noisy, gives no decision, and is repeated later.

Beside a busy program some decisions are clear, and some only seem to be: all calls of a candidate that has
more threads, or more barriers, are slower than they would be alone. So only samples count that nothing
disturbed; see ``nxcore.measure.load``. Where there are too few, or they leave a decision open, there is none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nxcore.measure.decision import MARGIN, NOISY, Candidate, Decision, ratio_to, winners

INCONCLUSIVE: Final = "inconclusive"
"""The rule of a decision for torch until its race is repeated."""


def judged(decision: Decision) -> Decision:
    """Return the decision on a race, inconclusive and for torch if other programs disturbed it, or noise."""
    why = disturbed(decision)
    if not why:
        return decision
    reason = f"no decision, the machine was busy: {why}; torch serves until the race is repeated"
    return replace(decision, chosen=decision.candidates[0].label, rule=INCONCLUSIVE, reason=reason)


def disturbed(decision: Decision) -> str:
    """Return why a race has no decision; empty if it has one.

    Where they had processors for a part of its time, torch has won only if no candidate can be faster by 2%:
    twice the A/A noise, which is theirs, would be a margin in favour of torch.
    """
    timed = [c for c in decision.candidates if c.timing and not (c.refusal or c.simulated)]
    found = [c.timing for c in timed if c.timing]
    if fault := next((t.fault for t in found if t.fault), ""):
        return fault
    if decision.noisy:
        return f"the A/A noise is {decision.noise:.0%}, at most {NOISY:.0%} is allowed"
    lost = max((t.lost for t in found), default=0.0)
    if lost <= MARGIN:
        return ""
    won = winners(timed)
    left = (c for c in timed if c not in won and not (won and c.native))
    if decision.noise <= NOISY and not any(_open(c, timed[0]) for c in left):
        return ""
    return f"for {lost:.0%} of the time others had its processors, and what is left shows no clear decision"


def _open(c: Candidate, reference: Candidate) -> bool:
    """Return whether a candidate that didn't win may yet be faster than torch, by more than the least margin.

    One of torch's own may be faster than the reference.
    """
    if not c.native:
        return c.ratio is None or c.ratio.high > 1 + MARGIN
    ratio = ratio_to(c, reference, "eager")
    return ratio.low <= 1 and ratio.high > 1 + MARGIN
