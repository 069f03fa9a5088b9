"""Accept, verify, measure: from a problem and its arguments to a decision and the call that serves it."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nxcore import measure
from nxcore.errors import (
    BackendUnavailableError,
    MeasurementError,
    UnsupportedProblemError,
    VerificationError,
)
from nxcore.kernel import Backend, Kernel
from nxcore.problem import Problem, TensorMeta
from nxcore.reference import TorchKernel
from nxcore.registry import Registry
from nxcore.select import Candidate, Decision, decide, prefer, settled
from nxcore.timing import Timing
from nxcore.verify import Truth, agreement, leaves, require_telling

AGAIN = "torch again"
"""The reference's second entry in every race: the A/A row."""


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
    """

    decision: Decision
    call: Callable[..., Any]
    kernel: Kernel

    @property
    def native(self) -> bool:
        """Whether torch itself runs it."""
        return isinstance(self.kernel, TorchKernel)


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


class Tuner:
    """Chooses kernels of a registry; remembers what it verified.

    Parameters
    ----------
    registry : Registry
        Operators and backends.
    effort : measure.Effort
        What a first call can afford.
    """

    def __init__(self, registry: Registry, effort: measure.Effort = measure.IN_CALL) -> None:
        self.registry, self.effort = registry, effort
        self._verified: dict[tuple[Any, ...], tuple[str, float | None]] = {}

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
        return Choice(Decision("torch", "reference", reason), problem.spec.reference, kernel)

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
            return _carry_out(Decision("torch", "pinned", "a view: there is nothing to run", ()), entries)
        entries = [
            self.enter(b, k, problem, args) for b, k in self.registry.kernels(problem.op) if b is backend
        ]
        for entry in entries:
            if not entry.candidate.refusal:
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
            return f"needs {' or '.join(_short(d) for d in kernel.dtypes)}, got {_short(problem.dtype)}"
        if problem.dtype is torch.float32 and kernel.precision != "ieee32":
            return f"its precision class is {kernel.precision}, and a float32 call needs ieee32"
        if not native and problem.writes and problem["out"].dtype != problem.outputs.dtype:
            return f"needs an out of the result's dtype, {_short(problem.outputs.dtype)}"
        if problem.aliased and not kernel.in_place_safe:
            return "doesn't claim to be in_place_safe, and out is an input"
        if torch.are_deterministic_algorithms_enabled() and not (native or kernel.deterministic):
            return "doesn't claim to be deterministic"
        try:
            verdict = kernel.accepts(problem)
        except Exception as error:  # noqa: BLE001  a plugin's code may raise anything
            return f"accepts raised {type(error).__name__}: {error}"
        return "" if verdict else verdict.reason or "declined without a reason"

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
        refusal, error = self.verify(backend, kernel, problem.device, problem.dtype)
        if refusal:
            return Entry(backend, kernel, replace(candidate, refusal=refusal, error=error))
        try:
            call = kernel.plan(problem)
            if not problem.view:
                _try_once(call, problem, args)
        except Exception as failure:  # noqa: BLE001  a compiler or a plugin may raise anything
            return Entry(backend, kernel, replace(candidate, refusal=_brief(failure), error=error))
        return Entry(backend, kernel, replace(candidate, error=error), call)

    def verify(
        self, backend: Backend, kernel: Kernel, device: torch.device, dtype: torch.dtype
    ) -> tuple[str, float | None]:
        """Hold a kernel to the float64 reference on its operator's smoke samples; once per dtype and device.

        Returns
        -------
        refusal : str
            The rule that it broke; empty if it agrees.
        error : float or None
            The worst relative error in the 2-norm; None where nothing was computed.
        """
        key = (backend.label(kernel), kernel.op, device, dtype)
        if key not in self._verified:
            refusal, error = self._verify(kernel, device, dtype)
            if refusal and error is None:  # it raised: the machine's state may be to blame, so ask again
                return refusal, error
            self._verified[key] = refusal, error
        return self._verified[key]

    def _verify(self, kernel: Kernel, device: torch.device, dtype: torch.dtype) -> tuple[str, float | None]:
        spec = self.registry.spec(kernel.op)
        worst, tried = 0.0, 0
        for sample in spec.tagged("smoke"):
            try:
                args, truth = _sample(spec.name, sample.name, device, dtype, self.registry)
                problem = Problem.of(spec, args)
                if not kernel.accepts(problem):
                    continue
                found = agreement(kernel.plan(problem), spec, args, truth)
            except Exception as failure:  # noqa: BLE001  a compiler or a plugin may raise anything
                return f"raised on sample {sample.name!r}: {_brief(failure)}", None
            if not found.ok:
                return f"wrong on sample {sample.name!r}: {found.reason}", found.error
            worst, tried = max(worst, found.error), tried + 1
        if not tried:
            return f"can't be verified: it takes none of the smoke samples in {_short(dtype)}", None
        return "", worst

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
        try:
            with torch.no_grad():
                timings = measure.race(
                    calls,
                    problem.device,
                    effort=self.effort,
                    rivals=frozenset({AGAIN, *(c.label for c in candidates if c.native)}),
                    settled=lambda seen: settled(_timed(candidates, seen), seen[AGAIN]),
                )
        except MeasurementError as error:
            return stay(f"not measured: {error}")
        except torch.OutOfMemoryError:
            return stay("not measured: out of memory")
        except Exception as error:  # noqa: BLE001  a kernel may raise anything, even at its second call
            return stay(f"not measured: {_brief(error)}")
        return _servable(decide(_timed(candidates, timings), timings[AGAIN]), entries)


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
    for entry in entries:
        if entry.candidate.label == decision.chosen and entry.call is not None:
            return Choice(decision, entry.call, entry.kernel)
    raise AssertionError(f"{decision.chosen!r} was chosen and has no call")


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
    for got, like in zip(result, leaves_of(problem.outputs), strict=True):
        came = TensorMeta.of(got)
        same = came.shape == like.shape and came.dtype == like.dtype
        if not same or (like.numel() and came.strides_of_extent != like.strides_of_extent):
            raise VerificationError(f"its result must be {like} as torch's, got {came}")


def leaves_of(outputs: Any) -> list[TensorMeta]:
    """Return the described tensors of ``Problem.outputs``, None left out."""
    if isinstance(outputs, TensorMeta):
        return [outputs]
    return [m for o in outputs or () for m in leaves_of(o)]


@functools.lru_cache(maxsize=256)
def _sample(
    op: str, name: str, device: torch.device, dtype: torch.dtype, registry: Registry
) -> tuple[tuple[Any, ...], Truth]:
    """Build a smoke sample and its truth, shared by all kernels of an operator.

    Raises
    ------
    VerificationError
        If the sample can't tell a kernel that does nothing from one that works.
    """
    spec = registry.spec(op)
    sample = next(s for s in spec.samples if s.name == name)
    args = sample.build(spec, device, dtype)
    truth = Truth.of(spec, args)
    require_telling(truth, args, name)
    return args, truth


def _brief(error: Exception) -> str:
    text = str(error).strip().splitlines()
    where = traceback.extract_tb(error.__traceback__)[-1:] or None
    at = f" ({where[0].name}, line {where[0].lineno})" if where else ""
    return f"{type(error).__name__}: {text[0] if text else ''}{at}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
