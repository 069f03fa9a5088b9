"""Accept, verify, measure: from a problem and its arguments to a decision and the call that serves it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from nxcore import measure
from nxcore.choice import (
    ON_REQUEST,
    Choice,
    Entry,
    carry_out,
    leaves_of,
    left_out,
    passing,
    private_out,
    servable,
    timed,
    try_once,
    yardstick,
)
from nxcore.errors import BackendUnavailableError, DeviceLostError, MeasurementError, UnsupportedProblemError
from nxcore.gate import Gate, brief, lost, short
from nxcore.kernel import Backend, Kernel
from nxcore.problem import Problem
from nxcore.registry import Registry
from nxcore.select import Candidate, Decision, decide, prefer, settled
from nxcore.timing import Timing
from nxcore.wisdom import AGAIN, Page, Wisdom, digest


class Tuner:
    """Chooses kernels of a registry.

    Parameters
    ----------
    registry : Registry
        Operators and backends.
    gate : Gate
        Who may be chosen at all.
    wisdom : Wisdom
        What was measured before.
    effort : measure.Effort
        What a first call can afford.
    """

    def __init__(
        self, registry: Registry, gate: Gate, wisdom: Wisdom, effort: measure.Effort = measure.IN_CALL
    ) -> None:
        self.registry, self.gate, self.wisdom, self.effort = registry, gate, wisdom, effort

    def choose(
        self,
        problem: Problem,
        args: tuple[Any, ...],
        *,
        backend: str | None = None,
        order: Sequence[str] = (),
    ) -> Choice:
        """Choose who serves ``problem``.

        Parameters
        ----------
        problem : Problem
            The call minus its data.
        args : tuple
            The call's arguments, all positional, already checked.
        backend : str, optional
            Strict: this backend or an error.
        order : sequence of str
            Backends to prefer, in order.

        Returns
        -------
        Choice
            With every candidate's time or its reason.

        Raises
        ------
        UnknownBackendError, BackendUnavailableError, UnsupportedProblemError
            If ``backend`` can't serve the call.
        """
        if backend is not None:
            return self._pinned(problem, args, backend)
        entries = [
            left_out(b, k) if b.on_request and b.name not in order else self.enter(b, k, problem, args)
            for b, k in self.registry.kernels(problem.op)
        ]
        decision, again = prefer([e.candidate for e in entries], order), None
        if decision is None:
            decision, again = self._measured(problem, args, entries)
        if again and not order:
            self.keep(problem, decision, again)
        return carry_out(decision, entries)

    def stay(self, problem: Problem, backend: str | None, reason: str) -> Choice:
        """Return torch's reference for a problem that no kernel may serve now.

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

    def locked(self, problem: Problem, args: tuple[Any, ...], label: str, *, strict: bool) -> Choice:
        """Return the kernel that a lock names, torch's reference where it can't serve.

        Raises
        ------
        UnsupportedProblemError
            If it can't and ``strict``.
        """
        owned = [(b, k) for b, k in self.registry.kernels(problem.op) if b.label(k) == label]
        why = "it isn't installed"
        if owned:
            entry = self.enter(*owned[0], problem, args)
            if entry.call is not None:
                decision = Decision(label, "locked", "the lock says so", (entry.candidate,))
                return Choice(decision, entry.call, entry.kernel, entry.backend)
            why = entry.candidate.refusal
        if strict:
            raise UnsupportedProblemError(problem.op, label, [f"the lock names it, and {why}"])
        return self.stay(problem, None, f"the lock names {label}, and {why}")

    def after(self, choice: Choice, problem: Problem, reason: str) -> Choice:
        """Return who is next where the chosen kernel failed for ``reason``: a runner-up, or torch."""
        failed = choice.decision
        known = tuple(
            replace(c, refusal=reason) if c.label == failed.chosen else c for c in failed.candidates
        )
        if not choice.runners_up:
            stayed = self.stay(problem, None, reason)
            return replace(stayed, decision=replace(stayed.decision, candidates=known, noise=failed.noise))
        entry, *others = choice.runners_up
        assert entry.call is not None  # noqa: S101  it was measured
        decision = Decision(entry.candidate.label, "measured", reason, known, failed.noise)
        return Choice(decision, entry.call, entry.kernel, entry.backend, tuple(others))

    def accepting(self, problem: Problem, order: Sequence[str] = ()) -> list[str]:
        """Return the labels of kernels, torch's own aside, that would take ``problem`` in a choice."""
        return [
            b.label(k)
            for b, k in self.registry.kernels(problem.op)
            if b.name != "torch"
            and (not b.on_request or b.name in order)
            and not self._refusal(b, k, problem)
            and not self.registry.probe(b, k).simulated
        ]

    def _pinned(self, problem: Problem, args: tuple[Any, ...], name: str) -> Choice:
        backend = self.registry.backend(name)
        verdict = self.registry.probe(backend)
        if not verdict:
            fix = f" ({verdict.hint})" if verdict.hint else ""
            raise BackendUnavailableError(
                f"backend {name!r} can't run here: {verdict.reason}{fix}", backend=name, reason=verdict.reason
            )
        if problem.view:  # there is no work, so there is nothing to run on a backend
            entries = [self.enter(b, k, problem, args) for b, k in self.registry.kernels(problem.op)]
            return carry_out(Decision("torch", "pinned", "a view: there is nothing to run", ()), entries)
        entries = [
            self.enter(b, k, problem, args) for b, k in self.registry.kernels(problem.op) if b is backend
        ]
        for entry in entries:
            if not entry.candidate.refusal:
                reason = f"backend={name!r} was asked for"
                candidates = tuple(e.candidate for e in entries)
                return carry_out(Decision(entry.candidate.label, "pinned", reason, candidates), entries)
        raise UnsupportedProblemError(
            problem.op, name, [f"{e.candidate.label}: {e.candidate.refusal}" for e in entries]
        )

    def _refusal(self, backend: Backend, kernel: Kernel, problem: Problem) -> str:
        """Return why a kernel can't take ``problem``: the machine's no, then the call's."""
        machine = self.registry.probe(backend, kernel)
        if not machine:
            return machine.reason
        native = backend.name == "torch"
        if not native and problem.dtype not in kernel.dtypes:
            return f"needs {' or '.join(short(d) for d in kernel.dtypes)}, got {short(problem.dtype)}"
        if problem.dtype is torch.float32 and kernel.precision != "ieee32":
            return f"its precision class is {kernel.precision}, and a float32 call needs ieee32"
        if not native and problem.writes and problem["out"].dtype != problem.outputs.dtype:
            return f"needs an out of the result's dtype, {short(problem.outputs.dtype)}"
        if problem.aliased and not kernel.in_place_safe:
            return "doesn't claim to be in_place_safe, and out is an input"
        if torch.are_deterministic_algorithms_enabled() and not (native or kernel.deterministic):
            return "doesn't claim to be deterministic"
        try:
            verdict = kernel.accepts(problem)
        except Exception as error:  # noqa: BLE001  a plugin's code may raise anything
            return f"accepts raised {type(error).__name__}: {error}"
        if not verdict:
            return verdict.reason or "declined without a reason"
        return "" if native else self.gate.refusal(backend, kernel, problem)

    def enter(
        self,
        backend: Backend,
        kernel: Kernel,
        problem: Problem,
        args: tuple[Any, ...],
        *,
        first: bool = True,
    ) -> Entry:
        """Ask, verify and plan one kernel, and run it once if it is its ``first`` run on such a problem.

        Its refusal says where it ended.
        """
        label = backend.label(kernel)
        simulated = self.registry.probe(backend, kernel).simulated
        candidate = Candidate(label, backend.name, simulated=simulated)
        refusal = self._refusal(backend, kernel, problem)
        if refusal:
            return Entry(backend, kernel, replace(candidate, refusal=refusal))
        if backend.name == "torch" and (not kernel.variant or yardstick(kernel)):
            return Entry(backend, kernel, candidate, kernel.plan(problem))
        try:
            held = self.gate.verify(backend, kernel, problem)
            candidate = replace(candidate, error=held.error)
            if held.refusal:
                return Entry(backend, kernel, replace(candidate, refusal=held.refusal))
            if not first:
                return Entry(backend, kernel, candidate, kernel.plan(problem))
            suspect = self.gate.suspect(backend, kernel, problem.device, problem.dtype)
            with self.gate.watched(suspect, problem.device, f"its first run on {problem}"):
                call = kernel.plan(problem)
                if not problem.view:
                    try_once(call, problem, args)
        except DeviceLostError:
            raise
        except torch.OutOfMemoryError:
            return Entry(backend, kernel, replace(candidate, refusal="out of memory at its first run"))
        except Exception as failure:  # noqa: BLE001  a compiler or a plugin may raise anything
            refusal = self.failed(backend, kernel, problem, failure)
            return Entry(backend, kernel, replace(candidate, refusal=refusal))
        return Entry(backend, kernel, candidate, call)

    def _measured(
        self, problem: Problem, args: tuple[Any, ...], entries: Sequence[Entry]
    ) -> tuple[Decision, Timing | None]:
        """Race all that can serve and decide; without measuring where that can't change anything.

        Returns
        -------
        decision : Decision
        again : Timing or None
            The A/A row, where there was a race.
        """
        candidates = [e.candidate for e in entries]
        racing = [e for e in entries if e.call and not e.candidate.refusal and not e.candidate.simulated]
        reference = entries[0].candidate.label

        def stay(reason: str) -> tuple[Decision, None]:
            return Decision(reference, "reference", reason, tuple(candidates)), None

        if problem.view:
            return stay("a view: there is nothing to run")
        if len(racing) == 1:
            return stay("no other backend has a kernel for this call")
        if any(m.numel() == 0 for m in leaves_of(problem.outputs)):
            return stay("there is nothing to compute")
        arguments = private_out(problem, args)
        calls: dict[str, Callable[[], Any]] = {
            e.candidate.label: functools.partial(e.call, *arguments) for e in racing if e.call
        }
        calls[AGAIN] = functools.partial(entries[0].call or problem.spec.reference, *arguments)
        failures: dict[str, str] = {}

        def failed(label: str, error: Exception) -> None:
            entry = next((e for e in racing if e.candidate.label == label), entries[0])
            failures[label] = self.failed(entry.backend, entry.kernel, problem, error)

        try:
            with torch.no_grad():
                timings = measure.race(
                    calls,
                    problem.device,
                    effort=self.effort,
                    rivals=frozenset({AGAIN, *(c.label for c in candidates if c.native)}),
                    settled=lambda seen: settled(timed(candidates, seen), seen.get(AGAIN)),
                    failed=failed,
                )
        except Exception as error:
            if reason := lost(problem.device):
                labels = [e.candidate.label for e in racing]
                raise DeviceLostError(
                    reason, op=problem.op, kernel=labels[0], sure=False, before=labels[1:]
                ) from error
            why = str(error) if isinstance(error, MeasurementError) else brief(error)
            return stay(
                "not measured: out of memory"
                if isinstance(error, torch.OutOfMemoryError)
                else f"not measured: {why}"
            )
        if failures and not any(e.candidate.label in timings for e in racing if e.backend.name != "torch"):
            return stay("; ".join(f"{label}: {why}" for label, why in failures.items()))
        candidates = [replace(c, refusal=failures.get(c.label, c.refusal)) for c in candidates]
        again = timings.get(AGAIN)
        return servable(decide(timed(candidates, timings), again), entries), again

    def _make(self, backend: Backend, kernel: Kernel, problem: Problem) -> str:
        """Return the digest of what a kernel is made of; empty where nobody could tell a change."""
        sources = self.gate.suspect(backend, kernel, problem.device, problem.dtype).made_of["sources"]
        return digest(sources) if all(sources.values()) else ""

    def taking_part(self, op: str) -> list[tuple[Backend, Kernel]]:
        """Return the kernels of ``op`` that take part without being asked for."""
        return [(b, k) for b, k in self.registry.kernels(op) if not b.on_request]

    def keep(
        self, problem: Problem, decision: Decision, again: Timing | None, policy: str = "measure"
    ) -> None:
        """Keep what was measured for the next process, unless chance had a part in who took part."""
        owned = self.taking_part(problem.op)
        makes = {b.label(k): self._make(b, k, problem) for b, k in owned}
        if again is None or not all(makes.values()) or any(passing(c.refusal) for c in decision.candidates):
            return
        late = [
            b.label(k) for b, k in owned if decision[b.label(k)].refusal and not self._refusal(b, k, problem)
        ]
        device = self.gate.suspect(*owned[0], problem.device, problem.dtype).device
        versions = {**device, "torch": str(torch.__version__)}
        self.wisdom.write(problem, Page(decision, again, makes, tuple(late), policy, versions=versions))

    def recall(self, problem: Problem, args: tuple[Any, ...]) -> Choice | None:
        """Return what was decided before; only kernels that are new or made otherwise are measured."""
        if problem.view or (page := self.wisdom.read(problem)) is None:
            return None
        known = {c.label: c for c in page.decision.candidates if not c.refusal.startswith(ON_REQUEST)}
        candidates: list[Candidate] = []
        changed = False
        new: list[tuple[Backend, Kernel]] = []
        for backend, kernel in self.taking_part(problem.op):
            label = backend.label(kernel)
            refusal, before = self._refusal(backend, kernel, problem), known.pop(label, None)
            same = before is not None and page.makes.get(label) == self._make(backend, kernel, problem)
            if refusal:
                changed |= before is not None and before.timing is not None
                candidates.append(Candidate(label, backend.name, refusal=refusal))
            elif before is not None and same and (before.timing or before.simulated or label in page.late):
                candidates.append(before)
            else:
                new.append((backend, kernel))
        changed |= any(c.timing for c in known.values())  # what is left isn't installed any more
        if new:
            return self._joined(problem, args, page, candidates, new)
        if changed:
            return self._carried(problem, args, self._decided(problem, candidates, page.again))
        return self._carried(problem, args, replace(page.decision, candidates=tuple(candidates)))

    def _joined(
        self,
        problem: Problem,
        args: tuple[Any, ...],
        page: Page,
        known: Sequence[Candidate],
        new: Sequence[tuple[Backend, Kernel]],
    ) -> Choice:
        """Race what is new against torch's own, and let it join what was measured before."""
        native = [(b, k) for b, k in self.taking_part(problem.op) if b.name == "torch" and (b, k) not in new]
        entries = [self.enter(b, k, problem, args) for b, k in [*native, *new]]
        raced, _ = self._measured(problem, args, entries)
        labels = {b.label(k) for b, k in new}
        found = {c.label: c for c in known} | {c.label: c for c in raced.candidates if c.label in labels}
        if (then := found["torch"].timing) and (now := raced["torch"].timing):
            # Ratios are what was measured: beside the torch of before, they are other times.
            found |= {
                c.label: replace(c, timing=c.timing.paced(then, now))
                for c in raced.candidates
                if c.timing and c.label in labels
            }
        order = [found[b.label(k)] for b, k in self.taking_part(problem.op)]
        decision = self._decided(problem, order, page.again)
        self.keep(problem, decision, page.again)
        return self._carried(problem, args, decision)

    def _decided(self, problem: Problem, candidates: Sequence[Candidate], again: Timing | None) -> Decision:
        owned = {b.label(k): (b, k) for b, k in self.taking_part(problem.op)}
        return servable(decide(candidates, again), [Entry(*owned[c.label], c) for c in candidates])

    def _carried(self, problem: Problem, args: tuple[Any, ...], decision: Decision) -> Choice:
        """Plan what was chosen in another process; torch serves where it can't be any more."""
        owned = next((b, k) for b, k in self.taking_part(problem.op) if b.label(k) == decision.chosen)
        entry = self.enter(*owned, problem, args, first=False)
        if entry.call is None:
            why = f"{decision.chosen} was chosen before, and now: {entry.candidate.refusal}"
            return self.stay(problem, None, why)
        return Choice(decision, entry.call, entry.kernel, entry.backend)

    def failed(self, backend: Backend, kernel: Kernel, problem: Problem, error: Exception) -> str:
        """Count what a kernel raised; return it as a refusal.

        Want of memory, and work on another stream than it should be, are no strikes.
        """
        if isinstance(error, torch.OutOfMemoryError):
            return "not measured: out of memory"
        if isinstance(error, MeasurementError):
            return f"not measured: {error}"
        reason = f"raised {brief(error)}"
        suspect = self.gate.suspect(backend, kernel, problem.device, problem.dtype)
        entry = self.gate.quarantine.strike(suspect, problem, reason)
        return str(entry) if entry else reason
