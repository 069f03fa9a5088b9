"""Tuning: problems measured before their calls, and longer than a call could.

A cell is one problem to measure. Each page of wisdom is written as soon as it is measured, so an interrupted
run continues where it ended: recorded figures that are clear and not stale are not measured again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from nxcore.choose.ahead import uncompiled
from nxcore.choose.chooser import torch_alone
from nxcore.choose.contenders import Choice
from nxcore.choose.families import Families
from nxcore.choose.prune import Pruner
from nxcore.choose.recall import Recall
from nxcore.choose.shortlist import EVERY, Shortlist
from nxcore.choose.tuner import Tuner
from nxcore.errors import InvalidInputError, nearest, present
from nxcore.interop.autograd import flatten
from nxcore.measure.busy import INCONCLUSIVE
from nxcore.measure.race import DROP, DROP_AFTER, Effort
from nxcore.observe.bar import Advance
from nxcore.offline.turns import Turn, Turns
from nxcore.registry import made
from nxcore.registry.registry import Registry
from nxcore.session import Session
from nxcore.spec.problem import Problem, tensors_of
from nxcore.spec.spec import OpSpec
from nxcore.store import problems
from nxcore.store.pages import Page
from nxcore.store.wisdom import PAIR, environment, key
from nxcore.trust.gate import brief, short

_log = logging.getLogger(__name__)

THOROUGH = Effort()
"""The effort of tuning, where no call waits: looks after 12, 20 and 40 blocks."""

IN_A_ROW = Effort(looks=(8, 12, 20, 40), warm_s=0.05, compiled=8, drops=((DROP_AFTER, DROP), (6, 1.3)))
"""The effort for a thousand problems in a row: the device is warm, a clear race ends after 8 blocks.

A kernel is left out if it is known of other sizes that it isn't near the fastest.
"""

Status = Literal["measured", "inconclusive", "known", "no race", "left out"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem to measure.

    Attributes
    ----------
    spec : OpSpec
        The operator.
    name : str
        The name in tables: a sample, or a line of a recorded file.
    build : callable
        Returns the arguments, all positional; called only when the cell is measured, to save memory.
    needs_grad, aliased, deterministic : bool
        Further properties of the problem.
    problem : Problem, optional
        The problem, where it is known without the arguments.
    calls : int
        The number of its calls, where that is known.
    """

    spec: OpSpec
    name: str
    build: Callable[[], tuple[Any, ...]]
    needs_grad: bool = False
    aliased: bool = False
    deterministic: bool = False
    problem: Problem | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one cell.

    Attributes
    ----------
    op, name : str
        The operator and the cell's name.
    problem : Mapping
        The problem as plain data; empty where its arguments couldn't be built.
    status : str
        ``measured``; ``inconclusive`` (other programs or noise disturbed the race, so nothing is kept);
        ``known`` (and not stale); ``no race`` (there was only one candidate); ``left out`` (its arguments
        couldn't be built, or the call can't be served).
    chosen : str
        The label of the kernel that serves it from now on.
    ratio : tuple of float, optional
        Its speed relative to torch's fastest way: median, low, high.
    was : str
        The earlier winner, empty if there was none.
    reason : str
        The reason, as one sentence.
    """

    op: str
    name: str
    problem: dict[str, Any]
    status: Status
    chosen: str = ""
    ratio: tuple[float, float, float] | None = None
    was: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def of_samples(
    registry: Registry,
    device: torch.device,
    ops: Sequence[str] = (),
    *,
    samples: Sequence[str] = (),
    dtypes: Sequence[str] = (),
) -> list[Cell]:
    """Return the cells of operators' real workloads, in every element type.

    Parameters
    ----------
    registry : Registry
    device : torch.device
        The device of the arguments.
    ops : sequence of str
        The operators, all of them by default.
    samples : sequence of str
        The samples, by default all real workloads except the huge ones; operators without them are skipped.
    dtypes : sequence of str
        Names without ``torch.``; by default all that an operator has kernels for.

    Raises
    ------
    UnknownOperatorError, InvalidInputError
        If a name is unknown; the message names the nearest.
    """
    specs = [registry.spec(op) for op in ops] or list(registry.ops.values())
    named = {s.name for spec in specs for s in spec.samples}
    typed = {short(d) for spec in specs for d in spec.dtypes}
    for what, requested, known in (("sample", samples, named), ("dtype", dtypes, typed)):
        for name in requested:
            if name not in known:
                raise InvalidInputError(f"no {what} {name!r} here{nearest(name, known)}", argument=what)
    return [
        Cell(spec, f"{s.name} {short(d)}", _builder(spec, s.name, device, d))
        for spec in specs
        for s in spec.samples
        if (s.name in samples if samples else "bench" in s.tags and "huge" not in s.tags)
        for d in spec.dtypes
        if not dtypes or short(d) in dtypes
    ]


def of_trace(registry: Registry, path: Path, device: torch.device | None = None) -> list[Cell]:
    """Return the cells of the problems that ``nxcore.record`` wrote, the most frequent first.

    Those of backward operators come first: with them a call and its gradient are measured together.

    Parameters
    ----------
    registry : Registry
    path : Path
        The file.
    device : torch.device, optional
        The device to measure on; by default one of the type that each problem was recorded on.

    Raises
    ------
    UnknownOperatorError, InvalidInputError
        If a line is invalid here.
    """
    cells = []
    for number, line in problems.read(path):
        spec = made.of_line(registry, line)
        problem = problems.described(spec, line)
        problem = problems.moved(problem, device or problem.device)
        build = functools.partial(_checked, spec, problem)
        known = problem if problem.device.type == "cpu" or torch.cuda.is_available() else None
        facts = (problem.needs_grad, problem.aliased, bool(line.get("deterministic")))
        cells.append(Cell(spec, f"{path.stem} {number}", build, *facts, known, int(line.get("count", 1))))
    return sorted(cells, key=lambda cell: differentiated(registry, cell.spec) is not None)


def differentiated(registry: Registry, spec: OpSpec) -> OpSpec | None:
    """Return the operator with a gradient that ``spec`` is, or runs for; None if there is none."""
    if spec.gradient:
        return spec
    return next((o for o in registry.ops.values() if o.gradient and o.gradient.forward == spec.name), None)


def _checked(spec: OpSpec, problem: Problem) -> tuple[Any, ...]:
    args = problems.arguments(problem)
    spec.check(*args)
    return args


def tuned(
    session: Session,
    cells: Iterable[Cell],
    *,
    again: bool = False,
    effort: Effort = THOROUGH,
    ends: float = math.inf,
    advance: Advance = lambda *_: None,
) -> Iterator[Row]:
    """Measure cells, one at each step, and write the results to wisdom.

    Parameters
    ----------
    session : Session
        The session with the kernels and the wisdom.
    cells : iterable of Cell
        The cells to measure.
    again : bool
        Measure recorded problems too.
    effort : Effort
        The number of blocks and the time budget; kernels are pruned if it limits what is compiled.
    ends : float
        The time, by ``time.monotonic``, from which on no cell is begun.
    advance : callable
        Called after each kernel of workers that was waited for; see ``Turns``.

    Yields
    ------
    Row
        The result of each cell, in the order of their turns.

    Raises
    ------
    InvalidInputError
        Under ``NXCORE_NO_MEASURE``.
    """
    if not session.tuner.measures:
        raise InvalidInputError("NXCORE_NO_MEASURE is set, and tuning is measuring; unset it")
    tuner = Tuner(session.registry, session.gate, effort, session.tuner.workers, settings=session.settings)
    recall = Recall(tuner, session.wisdom)
    for turn in Turns(tuner, _turns(recall, cells, again), ends=ends, advance=advance):
        with deterministic(turn.of.deterministic):
            row = _row(recall, turn.of, again, turn.shortlist)
            if row.status == "measured" or (row.status == "known" and not _paired(session, turn.of)):
                _measure_pair(session, turn.of, effort, again=again)
        yield row


def _turns(recall: Recall, cells: Iterable[Cell], again: bool) -> Iterator[Turn[Cell]]:
    """Yield cells with the problems that are to be measured."""
    pruner = Pruner(Families(recall))
    for cell in cells:
        of = differentiated(recall.tuner.registry, cell.spec) or cell.spec
        turn = Turn(cell, after=of.name)  # a call is measured with its gradient, so after its backward
        try:
            problem = cell.problem or _problem(cell, cell.build())
        except (RuntimeError, InvalidInputError):
            yield turn  # its row will tell
            continue
        with deterministic(cell.deterministic):
            page = None if again else recall.wisdom.read(problem)
            if not (page and _complete(recall, problem, page)) and not torch_alone(problem):
                missing = tuple(uncompiled(recall.tuner, problem))
                listed = pruner.shortlist(problem, missing)
                turn = replace(turn, problem=problem, missing=missing, shortlist=listed)
        yield turn


def _complete(recall: Recall, problem: Problem, page: Page) -> bool:
    """Return whether all kernels were measured clearly, and none has changed since."""
    pruned = page.pruned and not recall.tuner.effort.compiled
    return not (pruned or recall.stale(problem, page))


def _problem(cell: Cell, args: tuple[Any, ...]) -> Problem:
    return Problem.of(cell.spec, args, needs_grad=cell.needs_grad, aliased=cell.aliased)


def _paired(session: Session, cell: Cell) -> bool:
    """Return whether forward and backward of a cell are on record together."""
    if cell.problem is None:
        return False
    facts, op = environment(cell.problem.device), cell.spec.name
    wanted = key(cell.problem)
    return any(of["forward"] == wanted for of, _ in session.wisdom.shelf(facts, f"{op}{PAIR}").values())


def _measure_pair(session: Session, cell: Cell, effort: Effort, *, again: bool = False) -> None:
    """Measure forward and backward of a call together, if the cell is of a call that needs a gradient.

    With ``again``, it is measured though it is on record. The calls do it themselves: the first knows the
    forward choice, the second the backward choice too.
    """
    spec = differentiated(session.registry, cell.spec)
    if spec is None or not (cell.needs_grad or spec is not cell.spec):
        return
    args = differentiable(cell.build())
    leaves = [t for t in tensors_of(args) if t.requires_grad]
    operator = session.op(spec.name)
    try:
        with session.policy("measure"), session.chooser.pairs.every(effort, again=again), torch.enable_grad():
            for _ in range(3):
                results = flatten(operator.run(*args, *[p.default for p in spec.params[len(args) :]]))
                out = present(results[0], "out")
                torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
    except (RuntimeError, InvalidInputError) as error:  # no memory, no such call
        _log.warning("pair: %s with gradient isn't measured, %s: %s", spec.name, cell.name, brief(error))


def _row(recall: Recall, cell: Cell, again: bool, shortlist: Shortlist = EVERY) -> Row:
    row = Row(cell.spec.name, cell.name, {}, "left out")
    try:
        args = () if cell.problem else cell.build()
        problem = cell.problem or _problem(cell, args)
        row = replace(row, problem=problem.to_dict())
        if why := torch_alone(problem):
            return replace(row, reason=why)
        page = recall.wisdom.read(problem)
        row = replace(row, was=page.decision.chosen if page else "")
        if page and not again and _complete(recall, problem, page):
            return _found(row, "known", page)
        args = args or cell.build()
    except (RuntimeError, InvalidInputError) as error:  # no memory, no such device, no such call
        return replace(row, reason=brief(error))
    choice = recall.tuner.choose(problem, args, shortlist=shortlist, before=recall.before(problem))
    recall.keep(problem, choice.decision, choice.again)
    for each in _in_training(recall.tuner, problem):
        recall.keep(each, choice.decision, choice.again)
    if choice.decision.rule == INCONCLUSIVE:
        return replace(_found(row, INCONCLUSIVE, page or choice), reason=choice.decision.reason)
    return _found(row, "measured" if choice.again else "no race", choice)


def _found(row: Row, status: Status, by: Page | Choice) -> Row:
    decision = by.decision
    best = next((c for c in decision.candidates if c.label == decision.chosen), None)
    ratio = (best.ratio.median, best.ratio.low, best.ratio.high) if best and best.ratio else None
    return replace(row, status=status, chosen=decision.chosen, ratio=ratio, reason=decision.reason)


def _in_training(tuner: Tuner, problem: Problem) -> list[Problem]:
    """Return the problem with a gradient needed, if the same kernels would take part in its race."""
    gradient = problem.spec.gradient
    if not gradient or gradient.forward or problem.needs_grad or problem.writes:
        return []
    training = replace(problem, needs_grad=True)
    alike = gradient.covers(*problem.args) and tuner.accepting(training) == tuner.accepting(problem)
    return [training] if alike else []


def differentiable(arg: Any) -> Any:
    """Return an argument whose tensors require a gradient, where their dtype allows it."""
    if isinstance(arg, tuple):
        return tuple(differentiable(a) for a in arg)
    return arg.requires_grad_() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Set torch's deterministic algorithms within this block, as the problem was recorded."""
    was = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(wanted or was, warn_only=warns)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warns)


def _builder(
    spec: OpSpec, sample: str, device: torch.device, dtype: torch.dtype
) -> Callable[[], tuple[Any, ...]]:
    found = next(s for s in spec.samples if s.name == sample)
    return lambda: found.build(spec, device, dtype)
