"""Survey: the kernels that serve a model's step or a recorded run, and the time that they save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from nxcore.call.gradient_route import one_way_us
from nxcore.choose.explanation import Explanation, Origin
from nxcore.interop import native
from nxcore.nn.exchange import AWAKE, kind
from nxcore.nn.prepare import step
from nxcore.nn.swap import Swap, standing
from nxcore.observe.record import Trace
from nxcore.offline.ahead import deterministic
from nxcore.registry import made
from nxcore.session import Session, default
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.tally import Tally, tally
from nxcore.store import problems

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


@dataclass(frozen=True, slots=True)
class Status:
    """The kernels that serve a model or a recorded run. ``str()`` gives a table.

    Attributes
    ----------
    rows : tuple of Served
        The problems, those with the largest saving first.
    modules : Swap, optional
        The modules that nxcore's operators serve, and why the others are left to torch.
    next : str
        What to do next.
    tally : Tally
        What this process has compiled and measured so far.
    """

    rows: tuple[Served, ...]
    modules: Swap | None
    next: str
    tally: Tally = field(default_factory=tally)

    @property
    def saved_ms(self) -> float:
        """Milliseconds saved in a step, from the medians of single calls; 0 if calls are unknown."""
        return max(0.0, sum(row.calls * row.saved_us for row in self.rows) / 1e3)

    @property
    def counts(self) -> dict[str, int]:
        """State -> number of problems."""
        return {state: sum(row.state == state for row in self.rows) for state in STATES}

    @property
    def table(self) -> str:
        """The problems as text, a line each."""
        return _table(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "modules": self.modules.to_dict() if self.modules else None,
            "counts": self.counts,
            "saved_ms": self.saved_ms,
            "next": self.next,
            "tally": asdict(self.tally),
        }

    def __str__(self) -> str:
        lines = []
        if self.modules:
            served, left = len(self.modules.replaced), len(self.modules.left)
            lines.append(f"{served} modules are served by nxcore's operators, {left} stay torch's own")
        if self.rows:
            lines.append(self.table)
        told = [f"{n} {STATES[state]}" for state, n in self.counts.items() if n]  # type: ignore[index]  # its keys
        lines.append(f"problems: {'; '.join(told) or 'none met'}")
        if any(row.calls for row in self.rows):
            lines.append(f"saved: {self.saved_ms:.3g} ms a step, from the medians of single calls")
        counts = {"compilation": self.tally.compilations, "race": self.tally.races}
        told = [f"{n} {what}{'s' * (n != 1)}" for what, n in counts.items()]
        lines.append(f"this process: {', '.join(told)}")
        return "\n".join([*lines, f"next: {self.next}"])


def of_model(model: nn.Module | None, *args: Any, **kwargs: Any) -> Status:
    """Return the status of ``model``, of this process without one; see ``nxcore.status``."""
    session = default()
    tune = "record a step with nxcore.record(FILE), then run: nxcore tune --from-trace FILE"
    if model is None:
        return _status(session, [row_of(p, 0, known(session, p)) for p in decided(session)], None, tune)
    modules = standing(model)
    if args or kwargs:
        met = Trace()
        with session.observed(met):
            step(model, args, kwargs)
        rows = [row_of(problem, line["count"], known(session, problem)) for problem, line in met.met]
    else:
        rows = [row_of(problem, 0, known(session, problem)) for problem in decided(session)]
    accelerated = modules.replaced or any(kind(m) in AWAKE for m in model.modules())
    what = "" if accelerated else "nxcore.accelerate(model) lets nxcore's operators serve its modules"
    if not what and not rows:
        what = "nxcore.status(model, input) runs a step to see its problems"
    return _status(session, rows, modules, tune, what)


def of_trace(session: Session, path: Path, *, steps: int = 1, device: torch.device | None = None) -> Status:
    """Return the status of the problems that ``nxcore.record`` wrote.

    Parameters
    ----------
    session : Session
    path : Path
        The file.
    steps : int
        The number of recorded steps.
    device : torch.device, optional
        The device to run on; by default one of the type that each problem was recorded on.

    Raises
    ------
    UnknownOperatorError, InvalidInputError
        If a line is invalid here.
    """
    rows = []
    for number, line in problems.read(path):
        problem = problems.described(made.of_line(session.registry, line), line)
        problem = problems.moved(problem, device or problem.device)
        found = None
        if problem.device.type != "cuda" or torch.cuda.is_available():
            with deterministic(bool(line.get("deterministic"))):
                found = known(session, problem)
        rows.append(row_of(problem, int(line.get("count", 1)), found, f"line {number}", steps))
    return _status(session, rows, None, f"nxcore tune --from-trace {path}")


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


def _status(
    session: Session, rows: Sequence[Served], modules: Swap | None, tune: str, what: str = ""
) -> Status:
    found = sorted(bridged(rows, session), key=lambda row: -row.calls * row.saved_us)
    states = {row.state for row in found}
    if not what and "unknown" in states:
        what = tune
    if not what and "learning" in states:
        what = f"keep running: further calls decide; to decide at once, {tune}"
    return Status(tuple(found), modules, what or "nothing to do: every problem is decided")


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
    if decision.rule == "exploring":
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
        if row.state != "kernel" or not (row.problem.needs_grad or op in trains):
            yield row
            continue
        ways = 1 if by_kernel & halves.get(op, set()) else 2  # the other half's, where torch serves that
        way_us = one_way_us(row.problem, by_python=native.of(session.op(op)) is None)
        yield replace(row, saved_us=row.saved_us - ways * way_us)


def _table(rows: Sequence[Served]) -> str:
    head = ("problem", "calls", "kernel", "a call", "torch's", "saved")
    lines = [head, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = (0, 2)  # columns of names; figures are aligned at the right
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    )


def _cells(row: Served) -> tuple[str, ...]:
    first: TensorMeta = row.problem.tensors[0]
    shape = "x".join(map(str, first.shape))
    name = f"{row.where + ': ' if row.where else ''}{row.problem.op} {shape}"
    kernel = {"learning": "learning", "unknown": "not measured"}.get(row.state, row.chosen)
    mine = row.us if row.state == "kernel" else None
    us, best = (f"{v:,.1f} us" if v is not None else "" for v in (mine, row.torch_us))
    saved = f"{row.calls * row.saved_us / 1e3:.3f} ms" if row.calls and row.saved_us else ""
    return (name, str(row.calls or ""), kernel, us, best, saved)
