"""Entrant: who takes part in a cell. Registered kernels, and guests: a peer's operator, a user's own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nxcore.choose.contenders import left_out, yardstick
from nxcore.choose.tuner import Tuner
from nxcore.errors import FOREIGN, DeviceLostError
from nxcore.measure.decision import Candidate
from nxcore.spec.device import synchronize
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.problem import Problem
from nxcore.trust.gate import brief
from nxcore.trust.truth import Truth, agreement

TOO_LARGE = 1 << 25
"""Elements above which no truth is computed: in float64 it would be several times the sample."""

GUEST = "guest"
"""The backend of what nobody registered."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A kernel that nobody registered.

    Attributes
    ----------
    label : str
        Its name in tables.
    call : callable, optional
        Takes the operator's arguments, all positional, defaults filled in.
    refusal : str
        Why it can't take part.
    """

    label: str
    call: Callable[..., Any] | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Entrant:
    """One who takes part, or why not.

    Attributes
    ----------
    candidate : Candidate
        What is known of it; its error is that on this cell.
    call : callable, optional
        The planned kernel, where nothing speaks against timing it.
    eligible : bool
        The chooser could take it without being asked.
    aside : bool
        Timed as torch's best, never called to serve.
    compile_s : float, optional
        Seconds until it first had served the cell: verdict, plan, what is compiled for it, a first call.
    """

    candidate: Candidate
    call: Callable[..., Any] | None
    eligible: bool = False
    aside: bool = False
    compile_s: float | None = None


@dataclass(frozen=True)
class Entry:
    """The rules of who may take part.

    Attributes
    ----------
    tuner : Tuner
        Asks, verifies and plans registered kernels.
    backends : collection of str
        Only these and torch; all where empty. One on request takes part if it is named.
    requested : collection of str
        Backends on request that take part.
    """

    tuner: Tuner
    backends: Collection[str] = ()
    requested: Collection[str] = ()

    def named(self, op: str) -> list[tuple[Backend, Kernel]]:
        """Return the kernels of an operator that pass the filter, torch's own first."""
        kernels = self.tuner.registry.kernels(op)
        wanted = {"torch", *self.backends, *self.requested}
        return [(b, k) for b, k in kernels if not self.backends or b.name in wanted]

    def entrants(
        self,
        problem: Problem,
        args: tuple[Any, ...],
        guests: Sequence[Guest] = (),
        only: Collection[str] | None = None,
    ) -> Iterator[Entrant]:
        """Yield who takes part in a call, each held to the float64 truth on it.

        Parameters
        ----------
        problem : Problem
        args : tuple
            The call's arguments, all positional.
        guests : sequence of Guest
            Who else.
        only : collection of str, optional
            Labels; torch's own take part anyway.
        """
        small = sum(m.numel() for m in problem.tensors) < TOO_LARGE
        truth = Truth.of(problem.spec, args) if small else None
        for backend, kernel in self.named(problem.op):
            if only is None or backend.name == "torch" or backend.label(kernel) in only:
                yield _judged(self._entered(backend, kernel, problem, args), problem, args, truth)
        for guest in guests:
            if only is None or guest.label in only:
                found = Candidate(guest.label, GUEST, refusal=_refusal(guest))
                yield _judged(Entrant(found, guest.call), problem, args, truth)

    def _entered(self, backend: Backend, kernel: Kernel, problem: Problem, args: tuple[Any, ...]) -> Entrant:
        if backend.on_request and backend.name not in {*self.backends, *self.requested}:
            return Entrant(left_out(backend, kernel).candidate, None)
        if (machine := self.tuner.registry.probe(backend, kernel)).simulated:
            why = Refusal(Code.SIMULATED, f"simulated, so never timed: {machine.reason}")
            return Entrant(Candidate(backend.label(kernel), backend.name, why, simulated=True), None)
        began = time.perf_counter()
        entry = self.tuner.enter(backend, kernel, problem, args)
        if entry.call and backend.name != "torch":
            with (
                contextlib.suppress(Exception),
                torch.no_grad(),
            ):  # what raises does so again where it is told
                entry.call(*args)
                synchronize(problem.device)
        took = None if backend.name == "torch" else time.perf_counter() - began
        # What the smoke samples showed is the gate's; a row tells of its own cell.
        found = replace(entry.candidate, error=None)
        return Entrant(
            found, entry.call, eligible=not backend.on_request, aside=yardstick(kernel), compile_s=took
        )


def _judged(entrant: Entrant, problem: Problem, args: tuple[Any, ...], truth: Truth | None) -> Entrant:
    """Run a kernel once and compare; one that raises or is wrong takes no further part."""
    found = entrant.candidate
    if entrant.call is None or found.refusal:
        return replace(entrant, call=None)
    if entrant.aside or (truth is None and found.backend != GUEST):
        return entrant
    try:
        if truth is None:
            with torch.no_grad():
                entrant.call(*args)
            return entrant
        agreed = agreement(entrant.call, problem.spec, args, truth)
    except DeviceLostError:
        raise
    except FOREIGN as error:
        refusal = Refusal(Code.RAISED, f"raised {brief(error)}")
        return replace(entrant, candidate=replace(found, refusal=refusal), call=None)
    found = replace(found, error=agreed.error)
    if agreed.ok or found.native:  # torch is the baseline, wherever it rounds
        return replace(entrant, candidate=found)
    refusal = Refusal(Code.WRONG, f"wrong: {agreed.reason}")
    return replace(entrant, candidate=replace(found, refusal=refusal), call=None)


def _refusal(guest: Guest) -> Refusal | None:
    return Refusal(Code.OTHER, guest.refusal) if guest.refusal else None
