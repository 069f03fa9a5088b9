"""Survey: which kernels serve some problems, and the time that they save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nxcore.call.gradient_route import one_way_us
from nxcore.choose.explanation import Explanation, Origin
from nxcore.interop import native
from nxcore.measure.busy import INCONCLUSIVE
from nxcore.session import Session
from nxcore.spec.problem import Problem

State = Literal["kernel", "torch", "learning", "unknown"]

STATES: dict[State, str] = {
    "kernel": "served by a kernel",
    "torch": "served by torch, as no kernel is faster",
    "learning": "in exploration",
    "unknown": "not measured yet",
}


@dataclass(frozen=True, slots=True)
class Served:
    """One problem and the kernel that serves it.

    Attributes
    ----------
    problem : Problem
    calls : int
        The calls in a step; 0 if unknown.
    state : str
        ``kernel``, ``torch`` (measured, and no kernel is faster), ``learning`` or ``unknown``.
    chosen : str
        The label of the kernel that serves it.
    reason : str
        The reason, as one sentence.
    us, torch_us : float, optional
        Median microseconds of a call, for the kernel and for torch's fastest way.
    saved_us : float
        Microseconds saved by each call relative to torch's fastest way, minus the host time of the autograd
        function between forward and backward operator. Negative if only both together save time.
    where : str
        The line of a recorded file.
    """

    problem: Problem
    calls: int
    state: State
    chosen: str
    reason: str
    us: float | None = None
    torch_us: float | None = None
    saved_us: float = 0.0
    where: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        names = ("calls", "state", "chosen", "reason", "us", "torch_us", "saved_us", "where")
        return {"problem": self.problem.to_dict()} | {name: getattr(self, name) for name in names}


def known(session: Session, problem: Problem) -> Explanation | None:
    """Return the explanation of ``problem`` from this or an earlier process; nothing is measured."""
    if choice := session.chooser.known(problem):
        return session.explained(problem, choice)
    if (page := session.wisdom.read(problem)) is None:
        return None
    stale = session.chooser.recall.stale(problem, page)
    origin = Origin(page.policy, page.date, page.versions, stale)
    return Explanation(problem, page.decision, origin, session.tuner.fixes(problem))


def decided(session: Session) -> list[Problem]:
    """Return the problems with a choice in this process, without preference and ``backend=``."""
    choices = list(session.chooser.choices)
    return list(dict.fromkeys(key[0] for key in choices if key[1] is None and not key[2]))


def row_of(
    problem: Problem, calls: int, found: Explanation | None, where: str = "", steps: int = 1
) -> Served:
    """Return the row of a problem that was called so often in ``steps`` steps."""
    calls = -(-calls // steps)
    if found is None:
        return Served(problem, calls, "unknown", "torch", "it was never measured", where=where)
    decision = found.decision
    timed = {c.label: c for c in decision.candidates if c.timing}
    torchs = [c.timing.median_us for c in timed.values() if c.native and c.timing]
    mine, best = timed.get(decision.chosen), min(torchs, default=None)
    us = mine.timing.median_us if mine and mine.timing else None
    native = decision.chosen == "torch" or (mine is not None and mine.native)
    state: State = "torch" if native else "kernel"
    if decision.rule in ("exploring", INCONCLUSIVE):
        state = "learning"
    elif decision.rule == "prior" and native:
        state = "unknown"
    saved = best - us if state == "kernel" and us is not None and best is not None else 0.0
    return Served(problem, calls, state, decision.chosen, decision.reason, us, best, saved, where)


def bridged(rows: Sequence[Served], session: Session) -> Iterator[Served]:
    """Yield rows, those of kernels minus the host time of the autograd function between both ways."""
    halves: dict[str, set[str]] = {}
    trains: set[str] = set()
    for spec in session.registry.ops.values():
        if not (gradient := spec.gradient):
            continue
        trains |= {gradient.op, gradient.forward}
        for forward in {spec.name, gradient.forward}:
            halves.setdefault(forward, set()).add(gradient.op)
            halves.setdefault(gradient.op, set()).add(forward)
    by_kernel = {row.problem.op for row in rows if row.state == "kernel"}
    for row in rows:
        op = row.problem.op
        if row.state != "kernel" or row.us is None or not (row.problem.needs_grad or op in trains):
            yield row
            continue
        ways = 1 if by_kernel & halves.get(op, set()) else 2  # the other half's, where torch serves that
        way_us = one_way_us(row.problem, by_python=native.of(session.op(op)) is None)
        yield replace(row, saved_us=row.saved_us - ways * way_us)
