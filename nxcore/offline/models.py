"""Models: which kernel serves each module of a model, why, and what it saves."""

from __future__ import annotations

import inspect
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn

from nxcore.choose.pairs import TORCH
from nxcore.context import in_force
from nxcore.measure.timing import duration
from nxcore.nn import watching
from nxcore.nn.exchange import PATCHED, kind
from nxcore.nn.prepare import step
from nxcore.nn.served import Served
from nxcore.nn.swap import standing
from nxcore.offline import survey
from nxcore.session import Session, default
from nxcore.spec.problem import Problem

State = Literal["kernel", "torch", "rests", "learning", "unknown", "operator"]

LABELS: dict[State, str] = {
    "torch": "torch",
    "rests": "torch (rests)",
    "learning": "learning",
    "unknown": "not measured",
    "operator": "an operator",
}

NAME = 28
"""The widest column of names."""

REASONS = 6
"""The most reasons below the table, in full."""


@dataclass(frozen=True, slots=True)
class Row:
    """One module.

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
    """

    name: str
    module: str
    state: State
    kernels: tuple[str, ...]
    reason: str
    saved_us: float | None = None
    watched: bool = False


@dataclass(frozen=True, slots=True)
class ModelExplanation:
    """The kernels that serve the modules of a model. ``str()`` gives a table as wide as the terminal.

    Attributes
    ----------
    rows : tuple of Row
        The modules that can run nxcore's operators, in the model's order.
    left : dict of str to str
        The name of each other module without children -> why torch serves it.
    steps : tuple of str
        The results of comparing with plain steps; empty where the model has no watch.
    """

    rows: tuple[Row, ...]
    left: dict[str, str]
    steps: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {"rows": [asdict(row) for row in self.rows], "left": self.left, "steps": list(self.steps)}

    def table(self, width: int) -> str:
        """Return a line a module, cut to ``width``."""
        head = ("module", "class", "served by", "saved", "watch", "why")
        lines = [head, *map(_cells, self.rows)]
        *widths, _ = (max(map(len, column)) for column in zip(*lines, strict=True))
        return "\n".join(
            _cut("  ".join((*(c.ljust(w) for c, w in zip(cells, widths, strict=False)), cells[-1])), width)
            for cells in lines
        )

    def _reasons(self, width: int) -> list[str]:
        """Return the reasons that the table has no room for, each once, the most frequent first."""
        texts = zip(self.table(1 << 30).splitlines()[1:], self.rows, strict=True)
        kinds = Counter(row.reason for text, row in texts if len(text) > width)
        lines = [f"{count} modules: {reason}" for reason, count in kinds.most_common(REASONS)]
        return lines + [f"{len(kinds) - REASONS} more reasons: to_dict() has all"] * (len(kinds) > REASONS)

    def __str__(self) -> str:
        width = max(80, shutil.get_terminal_size((80, 24)).columns)
        lines = [self.table(width), *self._reasons(width)] if self.rows else []
        lines.append(f"{len(self.rows)} modules can run nxcore's operators, {len(self.left)} are torch's own")
        lines += [_cut(f"steps: {found}", width) for found in self.steps]
        if not self.rows:
            lines.append("next: nxcore.accelerate(model) lets nxcore's operators serve its modules")
        elif any(row.state == "operator" for row in self.rows):
            lines.append("next: nxcore.explain(model, input) shows the kernels and what they save")
        return "\n".join(lines)


def explain(model: nn.Module, *args: Any, **kwargs: Any) -> ModelExplanation:
    """Return what serves the modules of ``model``; see ``nxcore.explain``."""
    found = tuple(watching.report(model))
    session, names = default(), _concerned(model)
    left = {n: why for n, why in standing(model).left.items() if n not in names.values()}
    modules = dict(model.named_modules())
    reasons = {name: getattr(modules[name], "reason", "") for name in names.values()}
    seen = Seen(names)
    if args or kwargs:
        with in_force(as_is=True), session.observed(seen):
            step(model, args, kwargs)
    watched, stepped = watching.comparing(model), bool(args or kwargs)
    rows = tuple(
        _row(session, (name, type(modules[name]).__name__), reasons[name], seen, stepped, watched)
        for name in names.values()
    )
    return ModelExplanation(rows, left, found)


def _concerned(model: nn.Module) -> dict[int, str]:
    """Return identity -> name of each module that can run an operator."""
    return {
        id(module): name
        for name, module in model.named_modules()
        if (PATCHED in vars(kind(module)) and not isinstance(module, nn.ModuleList | nn.ModuleDict))
        or (isinstance(module, Served) and module.concerns(module) and not module.refusal(module))
    }


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

    def __init__(self, names: dict[int, str]) -> None:
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


def _row(
    session: Session, names: tuple[str, str], reason: str, seen: Seen, stepped: bool, watched: bool
) -> Row:
    name, module = names
    if reason:
        return Row(name, module, "rests", (), reason)
    if not stepped:
        why = "no input was given, so its problems are not known"
        return Row(name, module, "operator", (), why, watched=watched)
    met: dict[Problem, int] = {}
    for problem in seen.calls[name]:
        gradient = seen.gradients.get(problem)
        for p in (problem, gradient) if gradient else (problem,):
            met[p] = met.get(p, 0) + 1
    if not met:
        return Row(name, module, "torch", (), "the step made no call of its operator", watched=watched)
    rows = list(
        survey.bridged([survey.row_of(p, n, survey.known(session, p)) for p, n in met.items()], session)
    )
    rows = _together(session, seen, rows)
    states = {row.state for row in rows}
    order: tuple[survey.State, ...] = ("kernel", "learning", "unknown", "torch")
    state = next(s for s in order if s in states)
    chosen = [row for row in rows if row.state == state]
    kernels = tuple(dict.fromkeys(row.chosen for row in rows if row.state == "kernel"))
    timed = state == "kernel" and all(row.us is not None and row.torch_us is not None for row in chosen)
    saved = sum(row.calls * row.saved_us for row in chosen) / len(seen.calls[name]) if timed else None
    return Row(name, module, state, kernels, chosen[0].reason, saved, watched=watched)


def _together(session: Session, seen: Seen, rows: list[survey.Served]) -> list[survey.Served]:
    """Return rows, those of a call and its gradient by what both take together, where that was measured."""
    found = {row.problem: row for row in rows}
    for problem, gradient in seen.gradients.items():
        decision = session.chooser.pairs.of(problem)
        if decision is None or problem not in found or gradient not in found:
            continue
        timed = {c.label: c.timing.median_us for c in decision.candidates if c.timing}
        torchs, both = timed.get(TORCH), timed.get(decision.chosen)
        for half in (problem, gradient):
            reason = f"with its gradient: {decision.reason}"
            if decision.chosen == TORCH:
                found[half] = replace(found[half], state="torch", chosen=TORCH, reason=reason, saved_us=0.0)
            elif torchs is not None and both is not None and found[half].state == "kernel":
                saved = torchs - both if half is problem else 0.0
                found[half] = replace(found[half], reason=reason, saved_us=saved)
    return list(found.values())


def _cells(row: Row) -> tuple[str, ...]:
    name = row.name or "(the model)"
    if len(name) > NAME:
        name = f"...{name[3 - NAME :]}"
    by = ", ".join(row.kernels) if row.state == "kernel" else LABELS[row.state]
    saved = "" if row.saved_us is None else f"{'-' * (row.saved_us < 0)}{duration(abs(row.saved_us))}"
    return name, row.module, by, saved, "yes" if row.watched else "", row.reason


def _cut(text: str, width: int) -> str:
    text = text.rstrip()
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."
