"""The report of ``verify``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from nxcore.store.encoding import encoded

Outcome = Literal["passed", "failed", "declined"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a candidate on one call.

    Attributes
    ----------
    name : str
        What was checked, such as ``result`` or ``gradients``.
    sample : str
        The call: the sample's name, and what was changed in it.
    outcome : str
        ``passed``; ``failed``; ``declined`` if the candidate raised on a call that is no sample as given.
    error : float, optional
        Relative error in the 2-norm; None if there was nothing to compare.
    tolerance : float, optional
        The largest error allowed, in the same unit.
    explanation : str
        Where it passed, what the tolerance is made of; else what is wrong, or why it was declined.

    Examples
    --------
    >>> nxcore.testing.verify(torch.relu, torch.relu, [(torch.randn(4, 8),)]).checks[0].outcome
    'passed'
    """

    name: str
    sample: str
    outcome: Outcome
    error: float | None = None
    tolerance: float | None = None
    explanation: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of a candidate; ``str()`` is a table.

    Attributes
    ----------
    candidate, reference : str
        Their names.
    seed : int
        The seed of all numbers that were drawn: with it a failure comes again.
    checks : tuple of Check

    Examples
    --------
    >>> report = nxcore.testing.verify(torch.relu, torch.relu, [(torch.randn(4, 8),)])
    >>> report.passed
    True
    """

    candidate: str
    reference: str
    seed: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != "failed" for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.outcome == "failed")

    def json(self) -> str:
        """Return the report as JSON: its fields, and ``passed``."""
        return encoded({"passed": self.passed, **asdict(self)}, indent=1)

    def __str__(self) -> str:
        counts = {o: sum(c.outcome == o for c in self.checks) for o in ("passed", "failed", "declined")}
        head = f"{self.candidate} against {self.reference}, seed {self.seed}: " + (
            "passed" if self.passed else "FAILED"
        )
        lines = [head, ", ".join(f"{n} {outcome}" for outcome, n in counts.items())]
        rows = [("check", "sample", "outcome", "error", "allowed", "")]
        rows += [
            (c.name, c.sample, c.outcome, _number(c.error), _number(c.tolerance), c.explanation)
            for c in sorted(self.checks, key=lambda c: ("failed", "declined", "passed").index(c.outcome))
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        for row in rows:
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=False))
            lines.append("  ".join((*cells, row[-1])).rstrip())
        return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
