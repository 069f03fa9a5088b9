"""Every rule over every kernel, without pytest: who keeps them all, and which rule refused the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch

from nxcore.errors import FOREIGN, InvalidInputError, nearest
from nxcore.registry.registry import Registry
from nxcore.testing.cell import Broken, Cell, Declined, Inapplicable, cells, modest
from nxcore.testing.cuda import ON_CUDA
from nxcore.testing.rules import OF_A_KERNEL, OF_A_SAMPLE, OF_A_TYPE, Rule

Outcome = Literal["verified", "declined", "wrong", "crashed", "hung"]
Advance = Callable[[str, int, int], None]
Step = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a kernel broke.

    Attributes
    ----------
    rule : str
        Its name.
    message : str
        What was expected, and what came.
    sample : str
        Where; empty for a rule that chooses its own.
    """

    rule: str
    message: str
    sample: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}" + (f" (sample {self.sample})" if self.sample else "")


@dataclass(frozen=True, slots=True)
class Row:
    """How a kernel ended in one element type.

    Attributes
    ----------
    op, kernel, dtype : str
        Which; the kernel by its label.
    device : str
        Where it ran: ``cpu`` or ``cuda``; empty if it didn't.
    outcome : str
        ``verified``, ``declined`` (it, or the machine, refused everything), ``wrong``, ``crashed`` (the
        process died in it) or ``hung``.
    samples : int
        How many samples agreed with the float64 truth.
    error : float, optional
        The worst relative error in the 2-norm.
    reason : str
        Why it isn't verified.
    broken : tuple of Finding
        The rules that it broke.
    declined : Mapping
        Reason -> how many samples, or rules, the kernel refused for it.
    microseconds : float, optional
        What a planned call costs the host.
    """

    op: str
    kernel: str
    dtype: str
    device: str
    outcome: Outcome
    samples: int = 0
    error: float | None = None
    reason: str = ""
    broken: tuple[Finding, ...] = ()
    declined: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    microseconds: float | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against the kernel."""
        return self.outcome in ("verified", "declined")

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that it broke, in order, each once."""
        return tuple(dict.fromkeys(f.rule for f in self.broken))

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "op": self.op,
            "kernel": self.kernel,
            "dtype": self.dtype,
            "device": self.device,
            "outcome": self.outcome,
            "samples": self.samples,
            "error": self.error,
            "reason": self.reason,
            "broken": [asdict(f) for f in self.broken],
            "declined": dict(self.declined),
            "microseconds": self.microseconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """Return the row of such data."""
        return cls(**{**data, "broken": tuple(Finding(**f) for f in data["broken"])})


def examine(
    registry: Registry,
    *,
    backends: Sequence[str] = (),
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    advance: Advance = lambda *_: None,
) -> list[Row]:
    """Hold kernels to every rule, in this process; see ``isolated`` for those that may take it along.

    Parameters
    ----------
    registry : Registry
        Operators and backends.
    backends, ops, dtypes : sequence of str
        Only these; where empty every one, but for torch's own and backends on request.
    advance : callable
        ``advance(what, done, total)`` is told of every step.

    Returns
    -------
    list of Row
        One a kernel and element type, in the registry's order.

    Raises
    ------
    UnknownBackendError, BackendUnavailableError, UnknownOperatorError, InvalidInputError
        Naming the nearest.
    """
    asked = wanted(registry, backends=backends, ops=ops, dtypes=dtypes)
    rows = []
    for done, cell in enumerate(asked):
        advance(f"{cell.kernel.op} {cell.label} {cell.type}", done, len(asked))
        rows.append(held(cell))
    advance("done", len(asked), len(asked))
    return rows


def wanted(
    registry: Registry, *, backends: Sequence[str] = (), ops: Sequence[str] = (), dtypes: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells that ``examine`` would hold to the rules.

    Raises
    ------
    UnknownBackendError, BackendUnavailableError, UnknownOperatorError, InvalidInputError
        Naming the nearest.
    """
    found = [
        cell
        for cell in cells(registry, backends=backends, ops=ops)
        if backends or not cell.backend.on_request
    ]
    known = {cell.type for cell in found}
    for name in set(dtypes) - known:
        raise InvalidInputError(
            f"no kernel is made for dtype {name!r}{nearest(name, known)}", argument="dtype"
        )
    return [cell for cell in found if not dtypes or cell.type in dtypes]


def held(cell: Cell, step: Step = lambda *_: None) -> Row:
    """Hold one kernel in one element type to every rule; ``step(rule, sample)`` is told of each before it."""
    if not cell.machine:
        return Row(cell.kernel.op, cell.label, cell.type, "", "declined", reason=cell.machine.reason)
    broken: list[Finding] = []
    declined: Counter[str] = Counter()
    errors: list[float] = []
    microseconds = None
    for rule, one in _steps(cell):
        step(rule.__name__, one.sample.name if one.sample else "")
        try:
            found = rule(one)
        except Broken as error:
            broken.append(Finding(error.rule, error.message, one.sample.name if one.sample else ""))
        except Declined as refusal:
            declined[refusal.reason] += 1
        except Inapplicable:
            continue
        except FOREIGN as error:  # a result may be anything, and break whoever looks at it
            what = f"its result can't be judged: {type(error).__name__}: {error}"
            broken.append(Finding(rule.__name__, what, one.sample.name if one.sample else ""))
        else:
            if rule.__name__ == "agrees_with_float64" and found is not None:
                errors.append(found)
            elif rule.__name__ == "returns_promptly":
                microseconds = found
    if broken:
        outcome, reason = "wrong", str(broken[0])
    else:
        outcome, reason = ("verified", "") if errors else ("declined", "; ".join(declined))
    return _row(
        cell,
        outcome,
        samples=len(errors),
        error=max(errors, default=None),
        reason=reason,
        broken=tuple(broken),
        declined=dict(declined),
        microseconds=microseconds,
    )


def _row(cell: Cell, outcome: Any, **how: Any) -> Row:
    return Row(cell.kernel.op, cell.label, cell.type, cell.device.type, outcome, **how)


def _steps(cell: Cell) -> Iterable[tuple[Rule, Cell]]:
    """Yield each rule with the cell that it is about, the cheapest and most telling first."""
    for rule in (*(OF_A_KERNEL if cell.leads else ()), *OF_A_TYPE):
        yield rule, cell
    for sample in modest(cell.spec):
        for rule in OF_A_SAMPLE:
            yield rule, cell.on(sample)
    if cell.leads and torch.cuda.is_available():
        for rule in ON_CUDA:
            yield rule, cell
