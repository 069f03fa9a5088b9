"""Check every kernel by every rule without pytest: a row for each kernel and dtype, with its findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
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
        Name of the rule.
    message : str
        The expected and the actual result.
    sample : str
        The sample; empty if the rule chooses its own.

    Examples
    --------
    >>> print(nxcore.testing.Finding("deterministic", "two calls differ", "smoke"))
    deterministic: two calls differ (sample smoke)
    """

    rule: str
    message: str
    sample: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}" + (f" (sample {self.sample})" if self.sample else "")


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of a kernel in one dtype.

    Attributes
    ----------
    op, kernel, dtype : str
        Operator, label of the kernel, dtype.
    device : str
        The device that it ran on: ``cpu`` or ``cuda``; empty if it didn't run.
    outcome : str
        ``verified``, ``declined`` (the kernel or the machine refused all samples), ``wrong``, ``crashed``
        (the process died in it) or ``hung``.
    samples : int
        Number of samples that agreed with the float64 reference.
    error : float, optional
        The largest relative error in the 2-norm.
    reason : str
        Why it isn't verified.
    broken : tuple of Finding
        The rules that it broke.
    declined : Mapping
        Reason -> number of samples, or rules, that the kernel refused for it.
    microseconds : float, optional
        Time of a planned call on the host.

    Examples
    --------
    >>> nxcore.testing.Row("add", "numba", "float32", "cpu", "verified", samples=40).ok
    True
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
        """Whether the kernel broke no rule."""
        return self.outcome in ("verified", "declined")

    @property
    def rules(self) -> tuple[str, ...]:
        """The distinct names of the broken rules, in order."""
        return tuple(dict.fromkeys(f.rule for f in self.broken))

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        plain = {"broken": [asdict(f) for f in self.broken], "declined": dict(self.declined)}
        return {f.name: plain.get(f.name, getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """Return the row of the data of ``to_dict``."""
        return cls(**{**data, "broken": tuple(Finding(**f) for f in data["broken"])})


def examine(
    registry: Registry,
    *,
    backends: Sequence[str] = (),
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    advance: Advance = lambda *_: None,
) -> list[Row]:
    """Check kernels by every rule, in this process; see ``isolated`` for kernels that may crash.

    Parameters
    ----------
    registry : Registry
        Operators and backends.
    backends, ops, dtypes : sequence of str
        Only these. If empty: all, except torch's own kernels and backends on request.
    advance : callable
        Called as ``advance(what, done, total)`` before every step.

    Returns
    -------
    list of Row
        One for each kernel and dtype, in the registry's order.

    Raises
    ------
    UnknownBackendError, BackendUnavailableError, UnknownOperatorError, InvalidInputError
        If a name is unknown. The message suggests the nearest.

    Examples
    --------
    >>> nxcore.testing.examine(nxcore.Session().registry, ops=["sum_backward"])
    []
    """
    chosen = wanted(registry, backends=backends, ops=ops, dtypes=dtypes)
    rows = []
    for done, cell in enumerate(chosen):
        advance(f"{cell.kernel.op} {cell.label} {cell.type}", done, len(chosen))
        rows.append(held(cell))
    advance("done", len(chosen), len(chosen))
    return rows


def wanted(
    registry: Registry, *, backends: Sequence[str] = (), ops: Sequence[str] = (), dtypes: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells that ``examine`` checks.

    Raises
    ------
    UnknownBackendError, BackendUnavailableError, UnknownOperatorError, InvalidInputError
        If a name is unknown. The message suggests the nearest.
    """
    found = [
        cell
        for cell in cells(registry, backends=backends, ops=ops)
        if backends or not cell.backend.on_request
    ]
    known = {cell.type for cell in found}
    for name in set(dtypes) - known:
        raise InvalidInputError(f"no kernel takes dtype {name!r}{nearest(name, known)}", argument="dtype")
    return [cell for cell in found if not dtypes or cell.type in dtypes]


def held(cell: Cell, step: Step = lambda *_: None) -> Row:
    """Check one kernel in one dtype by every rule; call ``step(rule, sample)`` before each."""
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
        except FOREIGN as error:  # a result may be any object, and raise anything when read
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
    """Yield each rule with its cell, the cheapest and most informative first."""
    for rule in (*(OF_A_KERNEL if cell.leads else ()), *OF_A_TYPE):
        yield rule, cell
    for sample in modest(cell.spec, cell.kernel):
        for rule in OF_A_SAMPLE:
            yield rule, cell.on(sample)
    if cell.leads and torch.cuda.is_available():
        for rule in ON_CUDA:
            yield rule, cell
