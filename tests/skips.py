"""Why tests were skipped, a line for each common reason: there are thousands of skips without a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

RARE = 20
"""Reasons of fewer tests share a line."""


def by_reason(reasons: Iterable[str]) -> list[str]:
    """Return lines that say how many tests were skipped for each reason, the most common first."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    common = [(reason, n) for reason, n in counts.most_common() if n >= RARE]
    lines = [f"{n:6,}  {reason}" for reason, n in common]
    if other := counts.total() - sum(n for _, n in common):
        kinds = len(counts) - len(common)
        lines.append(f"{other:6,}  {kinds} other reason{'s' * (kinds > 1)}, which pytest -rs lists")
    return lines
