"""Seen: the problems that the modules of a model meet in a step, and a row for each replaced module."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from nxcore.choose.pairs import TORCH
from nxcore.nn.exchange import AWAKE, kind
from nxcore.offline import survey
from nxcore.offline.fitting import fits
from nxcore.session import Session
from nxcore.spec.problem import Problem
from nxcore.store.wisdom import key

State = Literal["kernel", "torch", "rests", "learning", "unknown", "operator"]

LABELS: dict[State, str] = {
    "torch": "torch",
    "rests": "torch (rests)",
    "learning": "learning",
    "unknown": "not measured",
    "operator": "an operator",
}

SHARES: Mapping[str, tuple[State, ...]] = {
    "served": ("kernel",),
    "torch": ("torch", "rests"),
    "undecided": ("learning", "unknown", "operator"),
}
"""Each replaced module is one of these."""


@dataclass(frozen=True, slots=True)
class Row:
    """One replaced module.

    Attributes
    ----------
    name, module : str
        Its name in the model, and its class.
    state : str
        ``kernel``, ``torch`` (measured, and no kernel is faster), ``rests`` (its ``forward`` is torch's),
        ``learning``, ``unknown`` (not measured yet), or ``operator`` where no input was given.
    kernels : tuple of str
        The kernels that serve its calls and their gradients.
    reason : str
        The reason, as one sentence.
    saved_us : float, optional
        Microseconds that a call saves, its gradient included, from the medians of measurements; None if a
        part of it was not measured, or torch serves it.
    watched : bool
        Whether steps with and without it are still to be compared.
    calls : int
        Its calls in the step; 0 if no step was run.
    gain : float, optional
        How many times as fast as torch's its calls are, gradients included, by these medians; 1 where torch
        serves it; None where that isn't known.
    """

    name: str
    module: str
    state: State
    kernels: tuple[str, ...]
    reason: str
    saved_us: float | None = None
    watched: bool = False
    calls: int = 0
    gain: float | None = None

    @property
    def by(self) -> str:
        """The kernels that serve it, or its state in words."""
        return ", ".join(self.kernels) if self.state == "kernel" else LABELS[self.state]


class Seen:
    """The problems of each module's calls.

    Parameters
    ----------
    names : dict of int to str
        Identity -> name of the modules.

    Attributes
    ----------
    calls : dict
        Name -> the problems of its calls, each as often as it was met.
    gradients : dict
        Problem -> the problem of its gradient.
    """

    sees_both_ways = True

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self.calls: defaultdict[str, list[Problem]] = defaultdict(list)
        self.gradients: dict[Problem, Problem] = {}

    def observing(self, problem: Problem, label: str, call: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002  the label does not matter here
        """Return ``call``, which notes the module that makes it."""

        def noting(*args: Any) -> Any:
            if (name := self._caller()) is not None:
                self.calls[name].append(problem)
            return call(*args)

        return noting

    def paired(self, forward: Problem, backward: Problem, *, guessed: bool = False) -> None:
        """Note the gradient of ``forward``; a guess counts until the real one is known."""
        if not (guessed and forward in self.gradients):
            self.gradients[forward] = backward

    def _caller(self) -> str | None:
        """Return the innermost module of ours in the stack; none in a backward pass."""
        frame = inspect.currentframe()  # a hook on modules would prevent fused calls
        while frame is not None:
            if (name := self._names.get(id(frame.f_locals.get("self")))) is not None:
                return name
            frame = frame.f_back
        return None


def rows_of(
    session: Session, model: nn.Module, replaced: Mapping[str, str], seen: Seen | None, *, watched: bool
) -> tuple[Row, ...]:
    """Return a row for each replaced module; without ``seen`` no step was run."""
    modules = dict(model.named_modules())
    known = [] if seen else [(key(problem), problem) for problem in survey.decided(session)]
    found: dict[str, Row] = {}
    for name, cls in replaced.items():
        module = modules[name]
        if why := getattr(module, "reason", ""):
            found[name] = Row(name, cls, "rests" if kind(module) in AWAKE else "torch", (), why, gain=1.0)
        elif seen is None:
            own = [problem for facts, problem in known if fits(module, facts)]
            found[name] = replace(_by_process(session, name, cls, own), watched=watched)
        elif seen.calls[name]:
            found[name] = _row(session, (name, cls), seen, watched)
        else:
            found[name] = _within(name, cls, found, watched)
    return tuple(found.values())


def _by_process(session: Session, name: str, cls: str, own: Sequence[Problem]) -> Row:
    """Return the row of a module by the problems of this process that may be its own."""
    rows = [survey.row_of(problem, 0, survey.known(session, problem)) for problem in own]
    pairs = {problem: pair for problem in own if (pair := session.chooser.pairs.of(problem))}
    states: set[State] = {
        "torch" if row.problem in pairs and pairs[row.problem].chosen == TORCH else row.state for row in rows
    }
    kernels = tuple(dict.fromkeys(row.chosen for row in rows if row.state == "kernel"))
    if not states:
        return Row(name, cls, "operator", (), "no input was given, and no problem of its own was met")
    if len(states) > 1:
        why = f"no input was given, and its calls may be any of {len(rows)} problems"
        return Row(name, cls, "learning" if "learning" in states else "operator", (), why)
    (state,) = states
    return Row(name, cls, state, kernels if state == "kernel" else (), rows[0].reason)


def _within(name: str, cls: str, found: Mapping[str, Row], watched: bool) -> Row:
    """Return the row of a module that made no call: one around it may have made its own in place of it."""
    parts = name.split(".")
    for outer in (".".join(parts[:i]) for i in range(len(parts) - 1, -1, -1)):
        if outer in found and found[outer].calls:
            of = found[outer]
            return replace(
                of, name=name, module=cls, reason=f"{outer or 'the model'} runs it", saved_us=None, calls=0
            )
    return Row(name, cls, "torch", (), "the step made no call of its operator", watched=watched, gain=1.0)


def _row(session: Session, names: tuple[str, str], seen: Seen, watched: bool) -> Row:
    """Return the row of a module that made calls."""
    met: dict[Problem, int] = {}
    for problem in seen.calls[names[0]]:
        gradient = seen.gradients.get(problem)
        for p in (problem, gradient) if gradient else (problem,):
            met[p] = met.get(p, 0) + 1
    rows = together(session, seen, [survey.row_of(p, n, survey.known(session, p)) for p, n in met.items()])
    states, calls = {row.state for row in rows}, len(seen.calls[names[0]])
    order: tuple[survey.State, ...] = ("kernel", "learning", "unknown", "torch")
    state = next(s for s in order if s in states)
    chosen = [row for row in rows if row.state == state]
    kernels = tuple(dict.fromkeys(row.chosen for row in rows if row.state == "kernel"))
    timed = state == "kernel" and all(row.us is not None and row.torch_us is not None for row in chosen)
    saved = sum(row.calls * row.saved_us for row in rows) if timed else None
    gain = 1.0 if state == "torch" else None
    if saved is not None and not states & {"learning", "unknown"}:
        torchs = sum(row.calls * _torchs_us(session, seen, row) for row in rows)
        gain = torchs / (torchs - saved) if saved < torchs else None
    each = None if saved is None else saved / calls
    return Row(*names, state, kernels, chosen[0].reason, each, watched, calls, gain)


def _torchs_us(session: Session, seen: Seen, row: survey.Served) -> float:
    """Return what torch's call takes; where it was measured with its gradient, both, and 0 of that alone."""
    halves = {gradient: problem for problem, gradient in seen.gradients.items()}
    pair = session.chooser.pairs.of(halves.get(row.problem, row.problem))
    timed = {c.label: c.timing.median_us for c in pair.candidates if c.timing} if pair else {}
    if TORCH not in timed:
        return row.torch_us or 0.0
    return 0.0 if row.problem in halves else timed[TORCH]


def together(session: Session, seen: Seen, rows: Sequence[survey.Served]) -> list[survey.Served]:
    """Return rows less the cost of the bridge, and those of a call and its gradient by what both take.

    That was measured where the halves alone didn't decide.
    """
    found = {row.problem: row for row in survey.bridged(rows, session)}
    forwards = {spec.gradient.forward for spec in session.registry.ops.values() if spec.gradient}
    for problem, gradient in seen.gradients.items():
        ours, theirs = found.get(problem), found.get(gradient)
        if ours and theirs and problem.op in forwards and (ours.state, theirs.state) == ("torch", "unknown"):
            why = "torch serves the call, so its gradient is torch's too"
            found[gradient] = replace(theirs, state="torch", reason=why)
        decision = session.chooser.pairs.of(problem)
        if decision is None or problem not in found or gradient not in found:
            continue
        timed = {c.label: c.timing.median_us for c in decision.candidates if c.timing}
        torchs, both = timed.get(TORCH), timed.get(decision.chosen)
        reason = f"with its gradient: {decision.reason}"
        gain = torchs - both if torchs is not None and both is not None else None
        for half in (problem, gradient):
            if decision.chosen == TORCH:
                found[half] = replace(found[half], state="torch", chosen=TORCH, reason=reason, saved_us=0.0)
            elif gain is not None and found[half].state == "kernel":
                found[half] = replace(found[half], reason=reason, saved_us=gain)
                gain = 0.0  # of both together, so it counts once
    return list(found.values())
