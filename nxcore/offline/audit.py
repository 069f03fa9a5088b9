"""An audit of recorded choices: each is measured against torch again, in a process of its own."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nxcore.choose.tuner import Tuner
from nxcore.errors import InvalidInputError, NxcoreError
from nxcore.measure.decision import MARGIN, Decision, Interval
from nxcore.measure.race import Effort
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.device import available, describe
from nxcore.spec.problem import Problem
from nxcore.store.encoding import encoded
from nxcore.store.problems import arguments, described, moved
from nxcore.store.wisdom import environment

EFFORT = Effort(looks=(12, 20, 40), warm_s=0.05, budget_s=2.0)
PROGRAM = "import json, sys; from nxcore.offline.audit import printed; printed(**json.loads(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Row:
    """A choice that was measured again.

    Attributes
    ----------
    op, problem : str
        The operator and the problem.
    chosen, rule : str
        The winner and the rule.
    ratio : tuple of float
        The winner's speed relative to torch's fastest way: median, low, high.
    slower : bool
        Whether it is significantly slower than torch by more than the margin.
    """

    op: str
    problem: str
    chosen: str
    rule: str
    ratio: tuple[float, float, float]
    slower: bool


def judged(problem: Problem, decision: Decision, measured: Decision) -> Row | None:
    """Compare a decision with a measurement of its kernel and torch; None if its kernel wasn't timed."""
    found = measured[decision.chosen]
    if found.timing is None:
        return None
    ratio, margin = found.ratio or Interval(1.0, 1.0, 1.0), 1 + max(MARGIN, 2 * measured.noise)
    return Row(
        problem.op,
        str(problem),
        decision.chosen,
        decision.rule,
        (ratio.median, ratio.low, ratio.high),
        ratio.high * margin < 1 and decision.chosen != "torch",
    )


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a rate (Wilson 1927)."""
    if not total:
        return 0.0, 1.0
    z, rate = 1.959964, count / total
    middle = rate + z * z / (2 * total)
    width = z * math.sqrt(rate * (1 - rate) / total + (z / (2 * total)) ** 2)
    scale = 1 + z * z / total
    return max((middle - width) / scale, 0.0), min((middle + width) / scale, 1.0)


def audit(
    device: str | None = None,
    *,
    limit: int = 100,
    seconds: float = 60.0,
    seed: int = 0,
    cache: str | None = None,
) -> dict[str, Any]:
    """Measure recorded choices against torch again, in a separate process.

    Parameters
    ----------
    device : str, optional
        ``cpu`` or ``cuda``; by default CUDA if available.
    limit : int
        The most choices, drawn at random.
    seconds : float
        The time after which no further choice is measured.
    seed : int
        The seed of the draw.
    cache : str, optional
        The folder of measurements; it replaces ``NXCORE_CACHE``.

    Returns
    -------
    dict
        ``audited``, ``violations`` (choices slower than torch's best by more than the margin), ``rate``, its
        ``interval``, ``rows``, and why others were ``skipped``.
    """
    asked = {"device": device, "limit": limit, "seconds": seconds, "seed": seed}
    around = dict(os.environ) | ({"NXCORE_CACHE": cache} if cache else {})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, encoded(asked)],
        capture_output=True,
        text=True,
        check=False,
        env=around,
    )
    if done.returncode:
        raise NxcoreError(f"the audit's process ended with status {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def here(
    session: Session, device: torch.device, *, limit: int = 100, seconds: float = 60.0, seed: int = 0
) -> dict[str, Any]:
    """Measure recorded choices against torch again, in this process; see ``audit``."""
    facts = environment(device)
    kept = [
        (session.registry.ops[op], of, page)
        for op in session.registry.ops
        for of, page in session.wisdom.shelf(facts, op).values()
        if page.decision.chosen != "torch"
    ]
    random.Random(seed).shuffle(kept)
    started, rows = time.perf_counter(), []
    skipped: dict[str, int] = {}
    for spec, of, page in kept[:limit]:
        if time.perf_counter() - started > seconds:
            break
        try:
            problem = moved(described(spec, of), device)
        except InvalidInputError:
            row: Row | str = "its page is of another release"
        else:
            row = _again(session, problem, arguments(problem), page.decision)
        if isinstance(row, str):
            skipped[row] = skipped.get(row, 0) + 1
        else:
            rows.append(row)
    wrong = sum(r.slower for r in rows)
    return {
        "device": describe(device).name,
        "choices": len(kept),
        "audited": len(rows),
        "violations": wrong,
        "rate": wrong / len(rows) if rows else None,
        "interval": wilson(wrong, len(rows)),
        "skipped": skipped,
        "rows": [asdict(r) for r in rows],
    }


def _again(session: Session, problem: Problem, args: tuple[Any, ...], decision: Decision) -> Row | str:
    """Race the winner against torch's own; return the reason if that isn't possible."""
    tuner = Tuner(session.registry, session.gate, EFFORT)
    asked = [
        (b, k) for b, k in tuner.taking_part(problem.op) if b.name == "torch" or b.label(k) == decision.chosen
    ]
    entries = [tuner.enter(b, k, problem, args) for b, k in asked]
    chosen = next((e for e in entries if e.candidate.label == decision.chosen), None)
    if chosen is None or chosen.call is None:
        return "the chosen kernel can't serve it now"
    found = judged(problem, decision, tuner.measured(problem, args, entries).decision)
    if found and found.slower:  # a disturbance of the machine doesn't occur twice
        found = judged(problem, decision, tuner.measured(problem, args, entries).decision)
    return found or "it couldn't be measured"


def printed(device: str | None, **how: Any) -> None:
    """Audit in this process, with the environment's settings, and print the result of ``here`` as JSON."""
    sys.stdout.write(encoded(here(Session(Settings.from_environment()), available(device), **how)))
