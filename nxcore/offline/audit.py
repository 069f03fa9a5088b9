"""The quality of choices, measured again: regret on held-out problems, and an audit of recorded choices.

Regret is the excess of the winner's time over the best candidate's. The best candidate is determined in one
round of measurements and timed in another, later one. A candidate that was selected and timed in the same
blocks would seem fast by chance, or because other load on the machine was absent for that round.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nxcore.choose.contenders import Contender, yardstick
from nxcore.choose.tuner import Tuner
from nxcore.errors import InvalidInputError, NxcoreError
from nxcore.measure.decision import MARGIN, Decision, Interval
from nxcore.measure.race import Effort
from nxcore.measure.timing import Timing
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.device import available, describe
from nxcore.spec.problem import Problem
from nxcore.store.encoding import encoded
from nxcore.store.problems import arguments, described, moved
from nxcore.store.wisdom import environment

EFFORT = Effort(looks=(12, 20, 40), warm_s=0.05, budget_s=2.0)
ROUNDS = 2
PROGRAM = "import json, sys; from nxcore.offline.audit import printed; printed(**json.loads(sys.argv[1]))"
CALLS = 4_000
"""The most calls of an exploration."""


@dataclass(frozen=True, slots=True)
class Row:
    """A choice that was measured again.

    Attributes
    ----------
    op, problem : str
        The operator and the problem.
    chosen, rule : str
        The winner and the rule.
    best : str
        The fastest candidate.
    regret : float
        The ratio of the winner's time to the best candidate's; 1 is no regret.
    ratio : tuple of float
        The winner's speed relative to torch's fastest way: median, low, high.
    slower : bool
        Whether it is significantly slower than torch by more than the margin, in every round.
    us : tuple of Mapping
        The median microseconds of each candidate, by round.
    """

    op: str
    problem: str
    chosen: str
    rule: str
    best: str
    regret: float
    ratio: tuple[float, float, float]
    slower: bool
    us: tuple[Mapping[str, float], ...] = ()


def regret(chosen: str, *rounds: Mapping[str, Timing]) -> tuple[float, str]:
    """Return the ratio of the winner's time to the best one's, and the best one; blocks are paired by round.

    A single round is split into its even and its odd blocks.
    """
    whole = min(rounds[0], key=lambda label: statistics.fmean(math.log(r[label].median_us) for r in rounds))
    blocks = [{label: t.call_us for label, t in r.items()} for r in rounds]
    if len(blocks) == 1:
        blocks = [{label: us[turn::2] for label, us in blocks[0].items()} for turn in (0, 1)]
    logs = []
    for told, held in itertools.permutations(blocks, 2):
        if not all(told.values()) or not all(held.values()):
            continue  # a candidate dropped after three blocks has two and one
        best = min(told, key=lambda label: statistics.median(told[label]))
        pairs = zip(held[chosen], held[best], strict=False)
        logs.append(statistics.median(math.log(mine / least) for mine, least in pairs))
    return math.exp(statistics.fmean(logs)) if logs else 1.0, whole


def judged(
    problem: Problem, decision: Decision, *measured: Decision, aside: Iterable[str] = ()
) -> Row | None:
    """Compare a decision with a measurement of all candidates; None if its kernel wasn't timed.

    Parameters
    ----------
    problem : Problem
    decision : Decision
        The decision to compare.
    measured : Decision
        The result of each round of a race of all.
    aside : iterable of str
        Labels of candidates that can't serve.
    """
    seen = [{c.label: c.timing for c in m.candidates if c.timing} for m in measured]
    common = {label for label in seen[0] if all(label in s for s in seen)}.difference(aside)
    rounds = [{label: s[label] for label in s if label in common} for s in seen]
    if decision.chosen not in common:
        return None
    found, best = regret(decision.chosen, *rounds)
    ratios = [m[decision.chosen].ratio or Interval(1.0, 1.0, 1.0) for m in measured]
    margins = [1 + max(MARGIN, 2 * m.noise) for m in measured]
    slower = all(ratio.high * margin < 1 for ratio, margin in zip(ratios, margins, strict=True))
    return Row(
        problem.op,
        str(problem),
        decision.chosen,
        decision.rule,
        best,
        found,
        (ratios[-1].median, ratios[-1].low, ratios[-1].high),
        slower and decision.chosen != "torch",
        tuple({label: round(t.median_us, 4) for label, t in r.items()} for r in rounds),
    )


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return an entry per operator, and one for all: count, quantiles of regret, counts by rule."""
    found = []
    for op in (*sorted({r.op for r in rows}), "all"):
        of = [r for r in rows if op in (r.op, "all")]
        regrets = sorted(r.regret for r in of)
        rules = {rule: sum(r.rule == rule for r in of) for rule in sorted({r.rule for r in of})}
        found.append(
            {
                "op": op,
                "problems": len(of),
                "p50": _quantile(regrets, 0.50),
                "p95": _quantile(regrets, 0.95),
                "max": regrets[-1] if regrets else None,
                "slower": sum(r.slower for r in of),
                "rules": rules,
                "others": sum(not r.chosen.startswith("torch") for r in of),
            }
        )
    return found


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the least value that a ``share`` of all values doesn't exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a rate (Wilson 1927)."""
    if not total:
        return 0.0, 1.0
    z, rate = 1.959964, count / total
    middle = rate + z * z / (2 * total)
    width = z * math.sqrt(rate * (1 - rate) / total + (z / (2 * total)) ** 2)
    scale = 1 + z * z / total
    return max((middle - width) / scale, 0.0), min((middle + width) / scale, 1.0)


def learn(session: Session, op: str, args: tuple[Any, ...]) -> Decision:
    """Measure one problem, keep the result and return it."""
    with session.policy("measure"):
        return session.chooser.choose(Problem.of(session.registry.spec(op), args), args).decision


def hold_out(
    session: Session,
    op: str,
    calls: Sequence[tuple[Any, ...]],
    policy: str = "estimate",
    effort: Effort = EFFORT,
) -> list[Row | None]:
    """Choose for problems by a policy, then measure all possible choices, round by round.

    Parameters
    ----------
    session : Session
    op : str
    calls : sequence of tuple
        The arguments of a call of each problem.
    policy : str
    effort : Effort
        The effort for one problem in one round.

    Returns
    -------
    list of Row
        With None for problems that only torch can serve, or that couldn't be measured.
    """
    tuner = Tuner(session.registry, session.gate, effort)
    held = []
    for args in calls:
        problem = Problem.of(session.registry.spec(op), args)
        decision = _decided(session, problem, args, policy)
        entries = [tuner.enter(b, k, problem, args) for b, k in tuner.taking_part(op)]
        held.append((problem, args, decision, entries))
    open_ = [i for i, (*_, entries) in enumerate(held) if any(_could_be_chosen(e) for e in entries)]
    measured: dict[int, list[Decision]] = {i: [] for i in open_}
    # A round takes every problem once, so that a disturbance of the machine is over by the next round.
    for _ in range(ROUNDS):
        for i in open_:
            problem, args, _, entries = held[i]
            measured[i].append(tuner.measured(problem, args, entries)[0])
    aside = {e.candidate.label for *_, entries in held for e in entries if yardstick(e.kernel)}
    return [
        judged(problem, decision, *measured[i], aside=aside) if i in measured else None
        for i, (problem, _, decision, _) in enumerate(held)
    ]


def _could_be_chosen(entry: Contender) -> bool:
    return entry.call is not None and not entry.candidate.simulated and entry.backend.name != "torch"


def _decided(session: Session, problem: Problem, args: tuple[Any, ...], policy: str) -> Decision:
    with session.policy(policy):
        choice = session.chooser.choose(problem, args)
        for _ in range(CALLS):
            if choice.decision.rule != "exploring":
                break
            session.chooser.learner.settle()
            choice.call(*args)
            choice = session.chooser.choose(problem, args)
        return choice.decision


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
    found = judged(problem, decision, tuner.measured(problem, args, entries)[0])
    if found and found.slower:  # a disturbance of the machine doesn't occur twice
        found = judged(problem, decision, tuner.measured(problem, args, entries)[0])
    return found or "it couldn't be measured"


def printed(device: str | None, **how: Any) -> None:
    """Audit in this process, with the environment's settings, and print the result of ``here`` as JSON."""
    sys.stdout.write(encoded(here(Session(Settings.from_environment()), available(device), **how)))
