"""Accept, verify, measure: from a problem and its arguments to a decision and a planned call."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from nxcore.choose import admission
from nxcore.choose.contenders import (
    Candidacy,
    Choice,
    Contender,
    carry_out,
    leaves_of,
    left_out,
    private_out,
    turned_down,
    yardstick,
)
from nxcore.choose.contest import Contest
from nxcore.choose.shortlist import EVERY, Shortlist
from nxcore.choose.workers import Workers
from nxcore.errors import (
    BackendUnavailableError,
    DeviceLostError,
    UnsupportedProblemError,
    VerificationError,
    present,
)
from nxcore.measure import race
from nxcore.measure.decision import Candidate, Decision
from nxcore.registry.registry import Registry
from nxcore.settings import Settings
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.device import current
from nxcore.spec.exits import RAISED, blamed
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.problem import Problem, TensorMeta, leaves
from nxcore.trust.form import marked
from nxcore.trust.gate import Gate

_log = logging.getLogger(__name__)


class Tuner:
    """Chooses among the kernels of a registry.

    Parameters
    ----------
    registry : Registry
        The operators and backends.
    gate : Gate
        Verifies kernels, and rejects those in quarantine.
    effort : measure.Effort
        How much the first call of a problem may measure.
    workers : Workers, optional
        Compile and verify kernels in processes of their own.
    settings : Settings, optional
        Whether anything may be compiled and measured; by default both.
    """

    def __init__(
        self,
        registry: Registry,
        gate: Gate,
        effort: race.Effort = race.IN_CALL,
        workers: Workers | None = None,
        *,
        settings: Settings | None = None,
    ) -> None:
        self.registry, self.gate, self.effort, self.workers = registry, gate, effort, workers
        self.jit, self.measures = (settings.jit, settings.measure) if settings else (True, True)

    def choose(
        self,
        problem: Problem,
        args: tuple[Any, ...],
        *,
        backend: str | None = None,
        order: Sequence[str] = (),
        shortlist: Shortlist = EVERY,
        before: Decision | None = None,
        candidacies: Sequence[Candidacy] = (),
    ) -> Choice:
        """Choose a kernel for ``problem``.

        Parameters
        ----------
        problem : Problem
            The call without its data.
        args : tuple
            The call's arguments, all positional, already checked.
        backend : str, optional
            This backend must serve the call; otherwise an error is raised.
        order : sequence of str
            Preferred backends, in order.
        shortlist : Shortlist
            The kernels that are compiled, of those that must be.
        before : Decision, optional
            The decision on record, whose winners stay at ties.
        candidacies : sequence of Candidacy
            What is known of the problem's kernels; found here by default.

        Returns
        -------
        Choice
            The winner, and every candidate with its time or refusal.

        Raises
        ------
        UnknownBackendError, BackendUnavailableError, UnsupportedProblemError
            If ``backend`` can't serve the call.
        """
        if backend is not None:
            return self._pinned(problem, args, backend)
        considered, preferred = self._preferred(problem, args, order)
        if preferred is not None:
            return preferred
        known = candidacies or self.candidacies(problem)
        entries = self.entered(problem, args, known, shortlist, considered)
        return self.measured(problem, args, entries, before).choice

    def candidacies(self, problem: Problem) -> list[Candidacy]:
        """Return what is known of the kernels for ``problem``; those on request are left out."""
        taking = self.taking_part(problem.op)
        refusals = admission.refusals(self.registry, self.gate, taking, problem, jit=self.jit)
        return [
            Candidacy(b, k, self.registry.probe(b, k).simulated, refusal)
            for (b, k), refusal in zip(taking, refusals, strict=True)
        ]

    def entered(
        self,
        problem: Problem,
        args: tuple[Any, ...],
        candidacies: Sequence[Candidacy],
        shortlist: Shortlist = EVERY,
        considered: Mapping[str, Contender] = MappingProxyType({}),
    ) -> list[Contender]:
        """Enter the kernels that a shortlist names, the first of it that can serve, and all others."""
        known, found = {c.label: c for c in candidacies}, dict(considered)
        args = private_out(problem, args)
        for label in (*shortlist.pruned, *shortlist.order):
            of, why = known[label], shortlist.pruned.get(label)
            if not why and sum(e.call is not None for e in found.values()) >= shortlist.most:
                why = shortlist.refusal(label)
            found[label] = turned_down(of.backend, of.kernel, why) if why else self._entry(of, problem, args)
        return [
            found.get(label := b.label(k))
            or (self._entry(known[label], problem, args) if label in known else left_out(b, k))
            for b, k in self.registry.kernels(problem.op)
        ]

    def _preferred(
        self, problem: Problem, args: tuple[Any, ...], order: Sequence[str]
    ) -> tuple[dict[str, Contender], Choice | None]:
        """Enter preferred kernels up to the first that can serve; return those entered, and its choice."""
        kernels = list(self.registry.kernels(problem.op))
        considered: dict[str, Contender] = {}
        for b, k in ((b, k) for name in order for b, k in kernels if b.name == name):
            entry = considered[b.label(k)] = self.enter(b, k, problem, args)
            if not entry.candidate.refusal:  # preparing the others may take long
                why = f"not considered: {b.name!r} is preferred"
                entries = [
                    considered.get(b.label(k))
                    or left_out(b, k, why if b.name in order or not b.on_request else "")
                    for b, k in kernels
                ]
                reason = f"nxcore.use({', '.join(map(repr, order))}) is in force"
                candidates = tuple(e.candidate for e in entries)
                decision = Decision(entry.candidate.label, "preferred", reason, candidates)
                return considered, carry_out(decision, entries)
        return considered, None

    def stay(self, problem: Problem, backend: str | None, reason: str) -> Choice:
        """Return torch's reference for a problem that no kernel can serve now.

        Raises
        ------
        UnsupportedProblemError
            If ``backend`` isn't torch.
        """
        if backend not in (None, "torch"):
            raise UnsupportedProblemError(problem.op, backend, [reason])
        torch_backend = self.registry.backend("torch")
        kernel = next(k for k in torch_backend.kernels if k.op == problem.op)
        decision = Decision("torch", "reference", reason)
        return Choice(decision, problem.spec.reference, kernel, torch_backend)

    def after(self, choice: Choice, problem: Problem, reason: str) -> Choice:
        """Return the next choice after the winner failed for ``reason``: a runner-up, or torch."""
        failed = choice.decision
        known = tuple(
            replace(c, refusal=Refusal(Code.RAISED, reason)) if c.label == failed.chosen else c
            for c in failed.candidates
        )
        behind = [e for e in choice.runners_up if not self.gate.refusal(e.backend, e.kernel, problem)]
        if not behind:
            stayed = self.stay(problem, None, reason)
            decision = replace(stayed.decision, candidates=known, noise=failed.noise)
            return replace(stayed, decision=decision, captured=choice.captured)
        entry, *others = behind
        call = present(entry.call, "entry.call")
        decision = Decision(entry.candidate.label, "measured", reason, known, failed.noise)
        return Choice(decision, call, entry.kernel, entry.backend, tuple(others), captured=choice.captured)

    def taking_part(self, op: str) -> list[tuple[Backend, Kernel]]:
        """Return the kernels of ``op`` that take part without an explicit request."""
        return [(b, k) for b, k in self.registry.kernels(op) if not b.on_request]

    def accepting(self, problem: Problem, order: Sequence[str] = ()) -> list[str]:
        """Return the labels of kernels, except torch's own, that accept ``problem``."""
        return [
            b.label(k)
            for b, k in self.registry.kernels(problem.op)
            if b.name != "torch"
            and (not b.on_request or b.name in order)
            and not self.refusal(b, k, problem)
            and not self.registry.probe(b, k).simulated
        ]

    def fixes(self, problem: Problem) -> dict[str, str]:
        """Return label -> the command that makes a kernel available, where the machine rejects it."""
        found: dict[str, str] = {}
        for backend, kernel in self.registry.kernels(problem.op):
            label, machine = backend.label(kernel), self.registry.probe(backend, kernel)
            if machine.hint:
                found[label] = machine.hint
            elif machine and self.gate.refusal(backend, kernel, problem):
                found[label] = f"nxcore quarantine clear {problem.op} --kernel {label}"
        return found

    def _pinned(self, problem: Problem, args: tuple[Any, ...], name: str) -> Choice:
        backend = self.registry.backend(name)
        verdict = self.registry.probe(backend)
        if not verdict:
            why = verdict.reason + (f" ({verdict.hint})" if verdict.hint else "")
            told = f"backend {name!r} can't run here: {why}"
            raise BackendUnavailableError(told, backend=name, reason=verdict.reason)
        if problem.view:  # there is no work, so there is nothing to run on a backend
            every = [self.enter(b, k, problem, args) for b, k in self.registry.kernels(problem.op)]
            return carry_out(Decision("torch", "pinned", "a view: there is nothing to run", ()), every)
        entries: list[Contender] = []
        for kernel in (k for b, k in self.registry.kernels(problem.op) if b is backend):
            entry = self.enter(backend, kernel, problem, args)
            entries.append(entry)
            if not entry.candidate.refusal:  # later kernels aren't considered, as there is no fallback
                reason = f"backend={name!r} was requested"
                candidates = tuple(e.candidate for e in entries)
                return carry_out(Decision(entry.candidate.label, "pinned", reason, candidates), entries)
        raise UnsupportedProblemError(
            problem.op, name, [f"{e.candidate.label}: {e.candidate.refusal}" for e in entries]
        )

    def refusal(self, backend: Backend, kernel: Kernel, problem: Problem) -> Refusal | None:
        """Return why a kernel is rejected for ``problem``: by the machine, then by the call."""
        return admission.refusal(self.registry, self.gate, backend, kernel, problem, jit=self.jit)

    def enter(
        self,
        backend: Backend,
        kernel: Kernel,
        problem: Problem,
        args: tuple[Any, ...],
        *,
        first: bool = True,
    ) -> Contender:
        """Check, verify and plan one kernel, and run it once if it is its ``first`` run on such a problem.

        The contender's refusal says which step rejected it.

        Raises
        ------
        UncompiledError
            If it must be compiled, within ``on_disk_alone``.
        """
        simulated = self.registry.probe(backend, kernel).simulated
        refusal = self.refusal(backend, kernel, problem)
        of = Candidacy(backend, kernel, simulated, refusal)
        return self._entry(of, problem, private_out(problem, args) if first else args, first=first)

    def ready(self, of: Candidacy, problem: Problem) -> Contender:
        """Verify and plan a kernel without a run, as ``enter`` does."""
        return self._entry(of, problem, (), first=False)

    def _entry(
        self, of: Candidacy, problem: Problem, args: tuple[Any, ...], *, first: bool = True
    ) -> Contender:
        backend, kernel, label = of.backend, of.kernel, of.label
        candidate = Candidate(label, backend.name, simulated=of.simulated, graph_safe=kernel.graph_safe)
        if of.refusal:
            return Contender(backend, kernel, replace(candidate, refusal=of.refusal))
        if backend.name == "torch" and (not kernel.variant or yardstick(kernel)):
            return Contender(backend, kernel, candidate, kernel.plan(problem))
        try:
            with contextlib.nullcontext() if self.jit else on_disk_alone():
                if refusal := self.gate.tried(backend, kernel, problem):
                    return Contender(backend, kernel, replace(candidate, refusal=refusal))
                held = self.gate.verify(backend, kernel, problem)
                candidate = replace(candidate, error=held.error)
                if held.refusal:
                    return Contender(backend, kernel, replace(candidate, refusal=held.refusal))
                if not first:
                    plan = self._planned(kernel.plan(problem), label, problem)
                    return Contender(backend, kernel, candidate, plan)
                suspect = self.gate.suspect(backend, kernel, problem.device, problem.dtype)
                with (
                    self.gate.watched(suspect, problem.device, f"its first run on {problem}", problem),
                    current(problem.device),
                ):
                    call = (of.entry.call if of.entry else None) or kernel.plan(problem)
                    if not problem.view:
                        try_once(call, problem, args)
        except UncompiledError as missing:
            if self.jit:
                raise
            return Contender(backend, kernel, replace(candidate, refusal=admission.uncompiled(missing)))
        except DeviceLostError:
            raise
        except RAISED as failure:
            refusal = self.failed(backend, kernel, problem, blamed(failure))
            return Contender(backend, kernel, replace(candidate, refusal=refusal))
        _log.debug("plan: %s for %s is ready", label, problem)
        return Contender(backend, kernel, candidate, self._planned(call, label, problem))

    def _planned(self, call: Callable[..., Any], label: str, problem: Problem) -> Callable[..., Any]:
        return call if self.jit else admission.from_disk(call, label, problem)

    def measured(
        self,
        problem: Problem,
        args: tuple[Any, ...],
        entries: Sequence[Contender],
        before: Decision | None = None,
    ) -> Contest:
        """Race all that can serve; the winners on record, ``before``, stay at ties."""
        effort = self.effort if self.measures else None
        contest = Contest(self.gate, effort, problem, args, entries, before)
        contest.run()
        return contest

    def failed(self, backend: Backend, kernel: Kernel, problem: Problem, error: Exception) -> Refusal:
        """Count a kernel's exception; return it as a refusal."""
        return admission.struck(self.gate, backend, kernel, problem, error)


def try_once(call: Callable[..., Any], problem: Problem, args: tuple[Any, ...]) -> None:
    """Run the real call once on memory of its own, so that errors are raised here, and check the layout."""
    with torch.no_grad():
        result = call(*args)
    if not problem.writes:  # otherwise the caller provides the memory
        check_result(result, problem, args)


def check_result(result: Any, problem: Problem, args: tuple[Any, ...]) -> None:
    """Check that a result has torch's shapes, dtypes and strides, and nothing that torch's hasn't.

    Raises
    ------
    VerificationError
        If it differs; the message names both.
    """
    inputs = {t.data_ptr() for t in leaves(args)}
    for i, (got, like) in enumerate(zip(tuple(leaves(result)), leaves_of(problem.outputs), strict=True)):
        came = TensorMeta.of(got)
        # The reference may return a view with another layout.
        if not _alike(came, like) and not _alike(came, leaves_of(problem.outputs_by(1))[i]):
            raise VerificationError(f"its result must be {like} as torch's, got {came}")
        if why := marked(got, views=got.data_ptr() in inputs):
            raise VerificationError(f"{why}, as torch's hasn't")


def _alike(came: TensorMeta, like: TensorMeta) -> bool:
    same = came.shape == like.shape and came.dtype == like.dtype
    return same and (not like.numel() or came.strides_of_extent == like.strides_of_extent)
