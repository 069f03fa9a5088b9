"""Which calls would need a compiler: their kernels' code is neither in a wheel nor in a cache on disk."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from nxcore.choose.ahead import compiled_ahead
from nxcore.errors import FOREIGN
from nxcore.observe.bar import Advance
from nxcore.offline.release import of_sample
from nxcore.session import Session
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.device import describe
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem
from nxcore.store import problems
from nxcore.store.pages import Page
from nxcore.store.wisdom import is_pair
from nxcore.trust.gate import brief

State = Literal["on disk", "compiles", "fails", "unknown"]

UNTOLD = "its plugin doesn't report what is on disk"


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel of a call, and whether it must be compiled first.

    Attributes
    ----------
    op, problem : str
        The operator, and the problem in words.
    kernel : str
        The label of a winner on record; of an unknown problem, that of any kernel that may take part.
    origin : str
        ``recorded`` on this machine, ``shipped`` with the package, or ``unknown``: nothing is on record.
    state : str
        ``on disk``; ``compiles``; ``fails``: it must be compiled and can't be, such as without a compiler;
        or ``unknown``.
    what : str
        The first kernel to be compiled; the error; or why it is unknown.
    """

    op: str
    problem: str
    kernel: str
    origin: str
    state: State
    what: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def calls(session: Session, wanted: Iterable[Problem], advance: Advance = lambda *_: None) -> Iterator[Call]:
    """Yield the kernels of problems: the winners on record, or all that may take part.

    Nothing is compiled, and torch's own kernels are left out.

    Parameters
    ----------
    session : Session
    wanted : iterable of Problem
        On devices of this machine.
    advance : callable
        Called after each problem.
    """
    tuner, listed = session.tuner, list(wanted)
    of = functools.cache(functools.partial(of_sample, session.registry))
    for done, problem in enumerate(listed, 1):
        page = session.wisdom.read(problem)
        owned = {b.label(k): (b, k) for b, k in tuner.taking_part(problem.op) if b.name != "torch"}
        winners = owned if page is None else _winners(session, page, owned)
        origin = "unknown" if page is None else "shipped" if page.foreign else "recorded"
        for label in winners:
            backend, kernel = owned[label]
            if tuner.refusal(backend, kernel, problem) or session.registry.probe(backend, kernel).simulated:
                continue
            samples = [
                of(problem.op, name, problem.dtype, problem.device.type)
                for name in session.gate.samples(backend, kernel, problem)
            ]
            state, what = missing(backend, kernel, (problem, *samples))
            yield Call(problem.op, str(problem), label, origin, state, what)
        advance(problem.op, done, len(listed))


def _winners(session: Session, page: Page, owned: dict[str, tuple[Backend, Kernel]]) -> list[str]:
    """Return the winners of a page in both regimes, of those whose figures still count."""
    decision = page.decision
    labels = dict.fromkeys((decision.chosen, (decision.captured or decision).chosen))
    make = session.gate.identity
    return [n for n in labels if n in owned and page.makes.get(n) == make(*owned[n]).kernel]


def missing(backend: Backend, kernel: Kernel, wanted: Iterable[Problem]) -> tuple[State, str]:
    """Return whether a kernel's code for problems is on disk, and the first of what isn't."""
    for problem in wanted:
        if not (backend.ahead if problem.device.type == "cuda" else kernel.announces):
            return "unknown", UNTOLD
        try:
            with on_disk_alone():
                _from_disk(backend, kernel, problem)
        except UncompiledError as error:
            return "compiles", str(error)
        except FOREIGN as error:
            return "fails", brief(error)
    return "on disk", ""


def _from_disk(backend: Backend, kernel: Kernel, problem: Problem) -> None:
    if problem.device.type == "cuda":
        compiled_ahead(backend, kernel, problem)
    elif kernel.takes(problem):
        kernel.plan(problem)


def on_record(session: Session, device: torch.device) -> list[Problem]:
    """Return the problems on record for a device, those of the package included."""
    facts = describe(device).to_dict()
    found = []
    for spec in session.registry.ops.values():
        keys = (of for of, _ in session.wisdom.shelf(facts, spec.name).values())
        found += [problems.described(spec, of) for of in keys if not is_pair(of)]
    return found


def of_trace(session: Session, path: Path) -> list[Problem]:
    """Return the problems that ``nxcore.record`` wrote.

    Raises
    ------
    UnknownOperatorError, InvalidInputError
        If a line is invalid here.
    """
    specs = ((session.registry.spec(line["op"]), line) for _, line in problems.read(path))
    return [problems.described(spec, line) for spec, line in specs]
