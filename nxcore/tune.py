"""Accept, verify, measure: from a problem and its arguments to a decision and the call that serves it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nxcore import measure
from nxcore.errors import (
    BackendUnavailableError,
    DeviceLostError,
    MeasurementError,
    UnsupportedProblemError,
    VerificationError,
)
from nxcore.gate import Gate, brief, lost, short
from nxcore.kernel import Backend, Kernel
from nxcore.problem import Problem, TensorMeta
from nxcore.reference import TorchKernel
from nxcore.registry import Registry
from nxcore.select import Candidate, Decision, decide, prefer, settled, winners
from nxcore.timing import Timing
from nxcore.verify import leaves

AGAIN = "torch again"
"""The reference's second entry in every race: the A/A row."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A candidate on its way.

    Attributes
    ----------
    backend, kernel
        What it is.
    candidate : Candidate
        What is known of it.
    call : callable, optional
        The planned kernel, where nothing speaks against it.
    """

    backend: Backend
    kernel: Kernel
    candidate: Candidate
    call: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision and the call that carries it out.

    Attributes
    ----------
    decision : Decision
        Who, by which rule, why.
    call : callable
        The planned kernel.
    kernel : Kernel
        What was chosen.
    backend : Backend
        Whose it is.
    runners_up : tuple of Entry
        Who else is faster than torch's own, the fastest first.
    """

    decision: Decision
    call: Callable[..., Any]
    kernel: Kernel
    backend: Backend
    runners_up: tuple[Entry, ...] = ()

    @property
    def native(self) -> bool:
        """Whether torch itself runs it."""
        return isinstance(self.kernel, TorchKernel)


class Tuner:
    """Chooses kernels of a registry.

    Parameters
    ----------
    registry : Registry
        Operators and backends.
    gate : Gate
        Who may be chosen at all.
    effort : measure.Effort
        What a first call can afford.
    """

    def __init__(self, registry: Registry, gate: Gate, effort: measure.Effort = measure.IN_CALL) -> None:
        self.registry, self.gate, self.effort = registry, gate, effort

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
            _left_out(b, k) if b.on_request and b.name not in order else self.enter(b, k, problem, args)
            for b, k in self.registry.kernels(problem.op)
        ]
        candidates = [e.candidate for e in entries]
        decision = prefer(candidates, order)
        if decision is None:
            decision = self._measured(problem, args, entries)
        return _carry_out(decision, entries)

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
            everybody = [self.enter(b, k, problem, args) for b, k in self.registry.kernels(problem.op)]
            return _carry_out(Decision("torch", "pinned", "a view: there is nothing to run", ()), everybody)
        entries: list[Entry] = []
        for kernel in (k for b, k in self.registry.kernels(problem.op) if b is backend):
            entry = self.enter(backend, kernel, problem, args)
            entries.append(entry)
            if not entry.candidate.refusal:  # those after it are not asked: nobody falls back to them
                reason = f"backend={name!r} was asked for"
                candidates = tuple(e.candidate for e in entries)
                return _carry_out(Decision(entry.candidate.label, "pinned", reason, candidates), entries)
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

    def enter(self, backend: Backend, kernel: Kernel, problem: Problem, args: tuple[Any, ...]) -> Entry:
        """Ask, verify and plan one kernel; its refusal says where it ended."""
        label = backend.label(kernel)
        simulated = self.registry.probe(backend, kernel).simulated
        candidate = Candidate(label, backend.name, simulated=simulated)
        refusal = self._refusal(backend, kernel, problem)
        if refusal:
            return Entry(backend, kernel, replace(candidate, refusal=refusal))
        if backend.name == "torch" and (not kernel.variant or _yardstick(kernel)):
            return Entry(backend, kernel, candidate, kernel.plan(problem))
        try:
            held = self.gate.verify(backend, kernel, problem)
            candidate = replace(candidate, error=held.error)
            if held.refusal:
                return Entry(backend, kernel, replace(candidate, refusal=held.refusal))
            suspect = self.gate.suspect(backend, kernel, problem.device, problem.dtype)
            with self.gate.watched(suspect, problem.device, f"its first run on {problem}"):
                call = kernel.plan(problem)
                if not problem.view:
                    _try_once(call, problem, args)
        except DeviceLostError:
            raise
        except torch.OutOfMemoryError:
            return Entry(backend, kernel, replace(candidate, refusal="out of memory at its first run"))
        except Exception as failure:  # noqa: BLE001  a compiler or a plugin may raise anything
            refusal = self.failed(backend, kernel, problem, failure)
            return Entry(backend, kernel, replace(candidate, refusal=refusal))
        return Entry(backend, kernel, candidate, call)

    def _measured(self, problem: Problem, args: tuple[Any, ...], entries: Sequence[Entry]) -> Decision:
        """Race all that can serve and decide; without measuring where that can't change anything."""
        candidates = [e.candidate for e in entries]
        racing = [e for e in entries if e.call and not e.candidate.refusal and not e.candidate.simulated]
        reference = entries[0].candidate.label

        def stay(reason: str) -> Decision:
            return Decision(reference, "reference", reason, tuple(candidates))

        if problem.view:
            return stay("a view: there is nothing to run")
        if len(racing) == 1:
            return stay("no other backend has a kernel for this call")
        if any(m.numel() == 0 for m in leaves_of(problem.outputs)):
            return stay("there is nothing to compute")
        arguments = _private_out(problem, args)
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
                    settled=lambda seen: settled(_timed(candidates, seen), seen.get(AGAIN)),
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
        return _servable(decide(_timed(candidates, timings), timings.get(AGAIN)), entries)

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


def _yardstick(kernel: Kernel) -> bool:
    """Tell whether a kernel is timed and never called to serve: see ``OpSpec.yardsticks``."""
    return isinstance(kernel, TorchKernel) and kernel.yardstick


def _servable(decision: Decision, entries: Sequence[Entry]) -> Decision:
    """Put the fastest of torch's ways in place of a yardstick that won."""
    aside = {e.candidate.label for e in entries if _yardstick(e.kernel)}
    if decision.chosen not in aside:
        return decision
    native = (c for c in decision.candidates if c.native and c.timing and c.label not in aside)
    best = min(native, key=lambda c: c.timing.median_us if c.timing else 0.0)
    reason = f"{decision.reason}; {decision.chosen} answers otherwise, so {best.label} serves"
    return replace(decision, chosen=best.label, reason=reason)


def _left_out(backend: Backend, kernel: Kernel) -> Entry:
    """Enter a kernel that takes part only where its backend is asked for."""
    why = f"only on request: {backend.on_request}; ask for it by backend={backend.name!r}"
    return Entry(backend, kernel, Candidate(backend.label(kernel), backend.name, refusal=why))


def _carry_out(decision: Decision, entries: Sequence[Entry]) -> Choice:
    called = {e.candidate.label: e for e in entries if e.call is not None}
    chosen = called.get(decision.chosen)
    if chosen is None or chosen.call is None:
        raise AssertionError(f"{decision.chosen!r} was chosen and has no call")
    others = sorted(winners(decision.candidates), key=lambda c: c.timing.median_us if c.timing else 0.0)
    behind = tuple(
        called[c.label]
        for c in others
        if c.label != decision.chosen and not _yardstick(called[c.label].kernel)
    )
    return Choice(decision, chosen.call, chosen.kernel, chosen.backend, behind)


def _timed(candidates: Sequence[Candidate], timings: Mapping[str, Timing]) -> list[Candidate]:
    return [replace(c, timing=timings.get(c.label)) for c in candidates]


def _private_out(problem: Problem, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give ``out`` memory of its own, laid out alike: a race must not write into the caller's."""
    return tuple(
        TensorMeta.of(a).empty() if p.kind == "out" and a is not None else a
        for p, a in zip(problem.spec.params, args, strict=True)
    )


def _try_once(call: Callable[..., Any], problem: Problem, args: tuple[Any, ...]) -> None:
    """Run the real call: what raises does so here, and a result laid out otherwise is another answer."""
    with torch.no_grad():
        result = tuple(leaves(call(*_private_out(problem, args))))
    if problem.writes:
        return  # the result lies where the caller said
    for i, (got, like) in enumerate(zip(result, leaves_of(problem.outputs), strict=True)):
        came = TensorMeta.of(got)
        # By 1 the reference may return a view, laid out otherwise.
        if not _alike(came, like) and not _alike(came, leaves_of(problem.outputs_by(1))[i]):
            raise VerificationError(f"its result must be {like} as torch's, got {came}")


def _alike(came: TensorMeta, like: TensorMeta) -> bool:
    same = came.shape == like.shape and came.dtype == like.dtype
    return same and (not like.numel() or came.strides_of_extent == like.strides_of_extent)


def leaves_of(outputs: Any) -> list[TensorMeta]:
    """Return the described tensors of ``Problem.outputs``, None left out."""
    if isinstance(outputs, TensorMeta):
        return [outputs]
    return [m for o in outputs or () for m in leaves_of(o)]
