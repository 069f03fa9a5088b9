"""Status: the kernels that serve a model's step, a process or a recorded run, and the time that they save."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nxcore.errors import of_type
from nxcore.measure.timing import duration
from nxcore.nn import lookups, watching
from nxcore.nn.prepare import step
from nxcore.nn.swap import Swap, standing
from nxcore.observe.record import Trace
from nxcore.offline import survey
from nxcore.offline.ahead import deterministic
from nxcore.offline.parts import Part, parts_of
from nxcore.offline.seen import SHARES, Row, Seen, rows_of, together
from nxcore.offline.survey import STATES, Served
from nxcore.program import front
from nxcore.registry import made
from nxcore.session import Session, default
from nxcore.spec.problem import TensorMeta
from nxcore.spec.tally import Tally, tally
from nxcore.store import problems

WIDTH = 80
"""The columns of a line, at most."""

LEARNING = "keep running: further calls decide"
DECIDED = "nothing: every problem is decided"
PREPARE = "nxcore.accelerate(model, prepare=(input,)) measures now"
TUNE = "record a step with nxcore.record(FILE), then run: nxcore tune --from-trace FILE"


PASSES = 28
"""The columns of what passes have changed."""

SHOWN = 3
"""The problems in exploration whose progress is shown."""


@dataclass(frozen=True, slots=True)
class Status:
    """The kernels that serve a model or a recorded run. ``str()`` gives tables of at most 80 columns.

    Attributes
    ----------
    rows : tuple of Served
        The problems, those with the largest saving first.
    modules : Swap, optional
        The model's replaced modules, and why the others are left as they were.
    next : str
        What to do next.
    tally : Tally
        What this process has compiled and measured so far.
    served : tuple of Row
        A row for each replaced module: what serves it, why, and what it saves.
    steps : tuple of str
        The results of comparing the model's steps with plain ones, and whether they, or graphs that
        ``torch.compile`` made with the backend ``nxcore``, are replayed; empty where there is neither.
    parts : tuple of Part
        What runs each graph of the model and its other code; empty where nothing may be replayed.
    """

    rows: tuple[Served, ...]
    modules: Swap | None
    next: str
    tally: Tally = field(default_factory=tally)
    served: tuple[Row, ...] = ()
    steps: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def saved_ms(self) -> float:
        """Milliseconds saved in a step, from the medians of measurements; 0 if calls are unknown."""
        return max(0.0, sum(row.calls * row.saved_us for row in self.rows) / 1e3)

    @property
    def counts(self) -> dict[str, int]:
        """State -> number of problems."""
        return {state: sum(row.state == state for row in self.rows) for state in STATES}

    @property
    def shares(self) -> dict[str, int]:
        """``served`` by kernels, ``torch`` or ``undecided`` -> number of replaced modules; all are in one."""
        return {share: sum(row.state in states for row in self.served) for share, states in SHARES.items()}

    @property
    def table(self) -> str:
        """The problems as text, a line each."""
        return _table(
            ("problem", "calls", "kernel", "a call", "torch's", "saved"), map(_cells, self.rows), {0, 2}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "modules": self.modules.to_dict() if self.modules else None,
            "served": [asdict(row) for row in self.served],
            "shares": self.shares,
            "counts": self.counts,
            "saved_ms": self.saved_ms,
            "steps": list(self.steps),
            "parts": [asdict(part) for part in self.parts],
            "next": self.next,
            "tally": asdict(self.tally),
        }

    def __str__(self) -> str:
        lines = [*self._parts(), *self._modules()]
        if self.rows:
            lines.append(self.table)
        told = [f"{n} {STATES[state]}" for state, n in self.counts.items() if n]  # type: ignore[index]  # its keys
        lines.append(f"problems: {'; '.join(told) or 'none met'}")
        learning = [row for row in self.rows if row.state == "learning"]
        lines += [f"in exploration: {r.problem.op}, {r.reason.rpartition(': ')[2]}" for r in learning[:SHOWN]]
        if any(row.calls for row in self.rows):
            lines.append(f"saved: {self.saved_ms:.3g} ms a step, from the medians of measurements")
        lines += [f"steps: {found}" for found in self.steps]
        counts = {"compilation": self.tally.compilations, "race": self.tally.races}
        told = [f"{n} {what}{'s' * (n != 1)}" for what, n in counts.items()]
        lines += [f"this process: {', '.join(told)}", f"next: {self.next}"]
        return "\n".join(part for line in lines for part in _wrapped(line))

    def _parts(self) -> Iterator[str]:
        """Yield a table of the model's parts, and the reasons why."""
        head, whys = ("parts", "run by", "passes", "saved a call", "why"), dict[str, int]()
        rows = []
        for part in self.parts:
            passes = ", ".join(f"{n} {name}" for name, n in part.passes.items())
            saved = duration(1e3 * part.saved_ms) if part.saved_ms else ""
            number = whys.setdefault(part.why, len(whys) + 1) if part.why else ""
            rows.append((part.part, part.by, _cut(passes, PASSES), saved, str(number)))
        if rows:
            yield _table(head, rows, {0, 1, 2})
        yield from (f"  {number}: {why}" for why, number in whys.items())

    def _modules(self) -> Iterator[str]:
        """Yield the lines about modules: those that are alike in one."""
        if self.modules is None:
            return
        if self.served:
            alike: dict[tuple[str, str], list[Row]] = {}
            for row in self.served:
                alike.setdefault((row.module, row.by), []).append(row)
            yield _table(("modules", "served by", "saved a step"), map(_group, alike.values()), {0, 1})
        told = f"modules: {len(self.served)} replaced"
        if self.served:
            told += f" ({', '.join(f'{n} {share}' for share, n in self.shares.items())})"
        yield f"{told}, {len(self.modules.left)} left"
        yield from (f"  {why}" for why in self.modules.reasons)


def of_model(model: nn.Module | None, *args: Any, **kwargs: Any) -> Status:
    """Return the status of ``model``, of this process without one; see ``nxcore.status``."""
    session = default()
    if model is None:
        return _status(session, _decided(session), TUNE)
    of_type(model, nn.Module, "a torch.nn.Module", "model")
    steps = tuple(watching.report(model))  # from here on the modules are as between blocks of plain steps
    steps += tuple(front.report(getattr(model, "_orig_mod", model)) if not steps else ())
    modules = standing(model)
    names = {id(module): name for name, module in model.named_modules() if name in modules.replaced}
    seen = None
    if args or kwargs:
        seen, met = Seen(names), Trace()
        with session.observed(seen), session.observed(met):
            step(model, args, kwargs)
        rows = [survey.row_of(p, line["count"], survey.known(session, p)) for p, line in met.met]
        rows = together(session, seen, rows)
    else:
        rows = list(survey.bridged(_decided(session), session)) if modules.replaced else []
    served = rows_of(session, model, modules.replaced, seen, watched=watching.comparing(model))
    found = _sorted(rows, modules, _after(session, model, modules, rows), served, steps)
    return replace(found, parts=parts_of(model))


def _decided(session: Session) -> list[Served]:
    return [survey.row_of(p, 0, survey.known(session, p)) for p in survey.decided(session)]


def _after(session: Session, model: nn.Module, modules: Swap, rows: Sequence[Served]) -> str:
    """Return what to do next with a model."""
    if not any(found.status == "ready" for name, found in session.backends().items() if name != "torch"):
        return "no backend but torch is ready: nxcore doctor says what to install"
    if not modules.replaced:
        if able := len(standing(model, would=True).replaced):
            return f"nxcore.accelerate(model) lets nxcore's operators serve {able} of its modules"
        why = Counter(modules.left.values()).most_common(1)
        return f"nothing: accelerate replaces none of its modules{f'; {why[0][0]}' if why else ''}"
    if any(map(lookups.prepared, model.modules())):
        return lookups.FIRST
    if not rows:
        return "nxcore.status(model, input) runs a step to see its problems"
    if not {row.state for row in rows} & {"learning", "unknown"}:
        return DECIDED
    policy = session.chooser.in_force
    if policy not in ("auto", "measure"):
        return f"the policy {policy!r} measures nothing: {PREPARE}"
    return PREPARE if policy == "measure" else f"{LEARNING}; {PREPARE}"


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
                found = survey.known(session, problem)
        rows.append(survey.row_of(problem, int(line.get("count", 1)), found, f"line {number}", steps))
    return _status(session, rows, f"nxcore tune --from-trace {path}")


def _status(session: Session, rows: Sequence[Served], tune: str) -> Status:
    """Return the status of problems that no model's step has met."""
    states = {row.state for row in rows}
    told = tune if "unknown" in states else f"{LEARNING}; to decide at once, {tune}"
    what = told if states & {"learning", "unknown"} else DECIDED
    return _sorted(list(survey.bridged(rows, session)), None, what)


def _sorted(
    rows: Sequence[Served],
    modules: Swap | None,
    what: str,
    served: tuple[Row, ...] = (),
    steps: tuple[str, ...] = (),
) -> Status:
    found = sorted(rows, key=lambda row: -row.calls * row.saved_us)
    return Status(tuple(found), modules, what, served=served, steps=steps)


def _group(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the cells of modules that are alike."""
    first = rows[0]
    name = f"{first.name or '(the model)'}:" if len(rows) == 1 else f"{len(rows)} x"
    what = f"{name} {first.module}"
    saved = sum(row.calls * (row.saved_us or 0.0) for row in rows)
    return what, first.by, f"{'-' * (saved < 0)}{duration(abs(saved))}" if saved else ""


def _cells(row: Served) -> tuple[str, ...]:
    first: TensorMeta = row.problem.tensors[0]
    shape = "x".join(map(str, first.shape))
    name = f"{row.where + ': ' if row.where else ''}{row.problem.op} {shape}"
    kernel = {"learning": "learning", "unknown": "not measured"}.get(row.state, row.chosen)
    mine = row.us if row.state == "kernel" else None
    us, best = (f"{v:,.1f} us" if v is not None else "" for v in (mine, row.torch_us))
    saved = f"{row.calls * row.saved_us / 1e3:.3f} ms" if abs(row.calls * row.saved_us) >= 0.5 else ""
    return (name, str(row.calls or ""), kernel, us, best, saved)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], names: Collection[int]) -> str:
    """Return rows as lines of at most ``WIDTH`` columns; cells of ``names`` stand left, figures right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    most = max(len(head[0]), WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
    widths[0] = min(widths[0], most)
    lines = [(_cut(first, most), *cells) for first, *cells in lines]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in names else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    )


def _cut(text: str, width: int) -> str:
    """Return a text without its middle if it is too long: an operator's name begins it, a shape ends it."""
    left = (width - 2) // 2
    return text if len(text) <= width else f"{text[:left]}..{text[len(text) - (width - 2 - left) :]}"


def _wrapped(line: str) -> list[str]:
    """Return the lines of a table as they are, and a sentence in lines of at most ``WIDTH`` columns."""
    if "\n" in line or len(line) <= WIDTH:
        return [line]
    text, command, words = line.partition("nxcore tune ")  # to be copied, so in one line
    text = text.replace("next: ", "next:\0") + (command + words).replace(" ", "\0")
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    parts = textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [part.replace("\0", " ") for part in parts]
