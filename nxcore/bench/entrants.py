"""Entrant: a kernel in a cell's race. It is registered, or a guest: a peer's operator, a user's function."""

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
"""Number of elements above which no float64 result is computed: it would take several times the memory."""

GUEST = "guest"
"""The backend name of kernels that are not registered."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A kernel that is not registered.

    Attributes
    ----------
    label : str
        Its name in tables.
    call : callable, optional
        Takes the operator's arguments, all positional, including defaults.
    refusal : str
        Why it can't run.
    """

    label: str
    call: Callable[..., Any] | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A kernel in a race, or the reason why it isn't.

    Attributes
    ----------
    candidate : Candidate
        The kernel as a candidate, with its error on this cell.
    call : callable, optional
        The planned kernel, unless it is rejected.
    eligible : bool
        The chooser may choose it without a request.
    aside : bool
        An idiom of torch that is timed as a baseline and never runs calls.
    compile_s : float, optional
        Seconds until its first call on the cell returned: verification, plan, compilation and the call.
    """

    candidate: Candidate
    call: Callable[..., Any] | None
    eligible: bool = False
    aside: bool = False
    compile_s: float | None = None


@dataclass(frozen=True)
class Entry:
    """The rules that select the kernels of a race.

    Attributes
    ----------
    tuner : Tuner
        Checks, verifies and plans registered kernels.
    backends : collection of str
        Only these and torch; all if empty. A backend on request runs if it is named.
    requested : collection of str
        Backends on request that run.
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
        """Yield the kernels of a call's race, each checked against the float64 reference on it.

        Parameters
        ----------
        problem : Problem
        args : tuple
            The call's arguments, all positional.
        guests : sequence of Guest
            Kernels that are not registered.
        only : collection of str, optional
            Labels of the kernels to run. Torch's own always run.
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
            ):  # an error is raised again, and reported, in ``_judged``
                entry.call(*args)
                synchronize(problem.device)
        took = None if backend.name == "torch" else time.perf_counter() - began
        # The error on the smoke samples belongs to the gate; a row has the error on its own cell.
        found = replace(entry.candidate, error=None)
        return Entrant(
            found, entry.call, eligible=not backend.on_request, aside=yardstick(kernel), compile_s=took
        )


def _judged(entrant: Entrant, problem: Problem, args: tuple[Any, ...], truth: Truth | None) -> Entrant:
    """Run a kernel once and compare; one that raises or is wrong is rejected."""
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
    if agreed.ok or found.native:  # torch is the baseline, however it rounds
        return replace(entrant, candidate=found)
    refusal = Refusal(Code.WRONG, f"wrong: {agreed.reason}")
    return replace(entrant, candidate=replace(found, refusal=refusal), call=None)


def _refusal(guest: Guest) -> Refusal | None:
    return Refusal(Code.OTHER, guest.refusal) if guest.refusal else None
