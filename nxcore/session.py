"""Session: a registry, a tuner and their operators. ``nxcore.op`` is sugar for the default session."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nxcore import discovery
from nxcore.autograd import Differentiable
from nxcore.dispatch import PREFERENCE, Operator, Plan, make_operator, overlap, tensors_of
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.measure import IN_CALL, Effort
from nxcore.problem import Problem
from nxcore.registry import BackendStatus, Registry
from nxcore.select import Decision
from nxcore.settings import Settings
from nxcore.tune import Choice, Tuner

DECISIONS = 4096


@dataclass(frozen=True, slots=True)
class Explanation:
    """Who runs a call, and why.

    Attributes
    ----------
    problem : Problem
        The call minus its data.
    decision : Decision
        Who, by which rule, why; every candidate with its time or its reason.
    """

    problem: Problem
    decision: Decision

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        return {"problem": self.problem.to_dict(), "decision": self.decision.to_dict()}

    def __str__(self) -> str:
        lines = [
            f"{self.problem}",
            f"{self.decision.chosen} runs it ({self.decision.rule}): {self.decision.reason}",
        ]
        for c in self.decision.candidates:
            if c.refusal:
                what = f"not eligible: {c.refusal}"
            elif c.simulated:
                what = "verified by simulation, never timed"
            elif c.timing:
                what = f"{c.timing.median_us:.4g} us" + (f", {c.ratio}" if c.ratio else "")
            else:
                what = "eligible, not timed"
            lines.append(f"  {c.label}: {what}")
        if self.decision.noise:
            lines.append(f"  torch against itself: within {self.decision.noise:.1%}")
        return "\n".join(lines)


class Session:
    """Everything that lives between calls.

    Parameters
    ----------
    settings : Settings, optional
        In place of the environment.
    registry : Registry, optional
        In place of what is installed.
    effort : Effort
        What the first call of a new problem may spend on measuring.
    """

    def __init__(
        self, settings: Settings | None = None, registry: Registry | None = None, effort: Effort = IN_CALL
    ) -> None:
        self.settings = settings or Settings.from_environment()
        self.registry = registry or discovery.discover(
            allow=self.settings.backends, disable=self.settings.disable, strict=self.settings.strict
        )
        self.tuner = Tuner(self.registry, effort)
        self._operators: dict[tuple[str, str | None], Operator] = {}
        self._decisions: OrderedDict[tuple[Problem, str | None, tuple[str, ...], bool], Choice] = (
            OrderedDict()
        )
        self._lock = threading.RLock()

    def op(self, name: str, *, backend: str | None = None) -> Operator:
        """Return the operator ``name``: the same object at every call.

        Parameters
        ----------
        name : str
            See ``nxcore ops``.
        backend : str, optional
            Strict: this backend serves the calls, or an error says why not.

        Raises
        ------
        UnknownOperatorError, UnknownBackendError
            Naming the nearest.
        """
        found = self._operators.get((name, backend))
        if found is None:
            spec = self.registry.spec(name)
            if backend is not None:
                self.registry.backend(backend)
            with self._lock:
                found = self._operators.setdefault(
                    (name, backend), make_operator(spec, self._resolve, backend, self._demoted)
                )
        return found

    def backends(self) -> dict[str, BackendStatus]:
        """Return name -> status of every backend: ready, unavailable, failed or disabled, and why."""
        return self.registry.statuses()

    @contextlib.contextmanager
    def use(self, *backends: str) -> Iterator[None]:
        """Prefer ``backends``, in this order, in the calls of this block; see ``nxcore.use``."""
        for name in backends:
            self.registry.backend(name)
        token = PREFERENCE.set(backends)
        try:
            yield
        finally:
            PREFERENCE.reset(token)

    def explain(self, name: str, *args: Any, backend: str | None = None, **kwargs: Any) -> Explanation:
        """Return who would run this call and why; decides it now if it is new."""
        operator = self.op(name, backend=backend)
        bound = operator.frozen(operator.spec.bind(*args, **kwargs))
        reason = operator.unusual(bound)
        operator.spec.check(*bound)
        if reason and backend not in (None, "torch"):
            raise UnsupportedProblemError(name, str(backend), [reason])
        problem = self._problem(operator, bound)
        if reason:
            return Explanation(problem, Decision("torch", "reference", reason))
        operator, problem, bound = self._served(operator, problem, bound)
        return Explanation(problem, self._choose(operator, problem, bound).decision)

    def _problem(self, operator: Operator, args: tuple[Any, ...]) -> Problem:
        named = list(zip(operator.spec.params, args, strict=True))
        inputs = tensors_of(tuple(a for p, a in named if p.kind != "out"))
        aliased = any(any(overlap(a, *inputs)) for p, a in named if p.kind == "out" and a is not None)
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_of(args))
        return Problem.of(operator.spec, args, needs_grad=needs_grad, aliased=aliased)

    def _choose(self, operator: Operator, problem: Problem, args: tuple[Any, ...]) -> Choice:
        order, key = PREFERENCE.get(), self._key(operator, problem)
        with self._lock:  # threads that meet the same new problem measure it once
            if key in self._decisions:
                self._decisions.move_to_end(key)
                return self._decisions[key]
            if reason := _torch_alone(problem):
                return self.tuner.stay(problem, operator.backend, reason)
            choice = self.tuner.choose(problem, args, backend=operator.backend, order=order)
            self._decisions[key] = choice
            if len(self._decisions) > DECISIONS:
                self._decisions.popitem(last=False)
            return choice

    def _demoted(self, operator: Operator, args: tuple[Any, ...], reason: str) -> None:
        """Keep why a kernel that failed in a call doesn't serve that problem any more."""
        args = operator.frozen(args)
        operator, problem, args = self._served(operator, self._problem(operator, args), args)
        with self._lock:
            self._decisions[self._key(operator, problem)] = self.tuner.stay(problem, None, reason)

    def _key(self, operator: Operator, problem: Problem) -> tuple[Any, ...]:
        return (problem, operator.backend, PREFERENCE.get(), torch.are_deterministic_algorithms_enabled())

    def _resolve(self, operator: Operator, args: tuple[Any, ...]) -> Plan:
        problem = self._problem(operator, args)
        served, inner, inner_args = self._served(operator, problem, args)
        choice = self._choose(served, inner, inner_args)
        call = self._guarded(choice, inner)
        gradient = operator.spec.gradient
        if served is not operator and choice.native:
            call = operator.spec.reference  # whose own autograd keeps what it needs
        elif problem.needs_grad and gradient and gradient.covers(*args):
            call = call if served is operator else _first(call, len(inner_args))
            call = self._differentiable(operator, problem, choice, call)
        return Plan(call, choice.decision.chosen, keep=not _capturing(problem))

    def _served(
        self, operator: Operator, problem: Problem, args: tuple[Any, ...]
    ) -> tuple[Operator, Problem, tuple[Any, ...]]:
        """Return what runs: another operator where a gradient is needed and that one keeps more for it."""
        gradient = operator.spec.gradient
        if not (problem.needs_grad and gradient and gradient.forward and gradient.covers(*args)):
            return operator, problem, args
        inner = self.op(gradient.forward, backend=operator.backend)
        inner_args = args[: len(inner.spec.params)]
        return inner, Problem.of(inner.spec, inner_args), inner_args

    def _differentiable(
        self, operator: Operator, problem: Problem, choice: Choice, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Join ``call`` with its backward operator, unless torch's own autograd would do all of it anyway."""
        spec, gradient = operator.spec, operator.spec.gradient
        assert gradient is not None  # noqa: S101  the caller looked
        backward = self.registry.spec(gradient.op)
        native = choice.decision.chosen == "torch" and operator.backend is None
        if native and not self._backward_candidates(problem):
            return call
        return Differentiable(
            spec=spec,
            gradient=gradient,
            forward=call,
            backward=_preferring(PREFERENCE.get(), self.op(gradient.op, backend=operator.backend)),
            reference=backward.reference,
        )

    def _backward_candidates(self, problem: Problem) -> list[str]:
        """Return the kernels that would take the gradient of ``problem``, laid out as the output."""
        gradient = problem.spec.gradient
        assert gradient is not None  # noqa: S101  the caller looked
        backward = self.registry.spec(gradient.op)
        mask = (True,) * len(problem.tensors)
        values = tuple(
            1 if isinstance(a, type) else a for a in problem.args
        )  # any number of that type will do
        described = Problem.of(backward, gradient.args(problem.outputs, mask, *values))
        return [] if described.view else self.tuner.accepting(described, PREFERENCE.get())

    def _guarded(self, choice: Choice, problem: Problem) -> Callable[..., Any]:
        """Wrap the planned call where its key can't tell a call that the kernel must not see."""
        call, reference = choice.call, problem.spec.reference
        if call is reference:
            return call
        if choice.decision.rule == "pinned":  # what a strict backend can't run, nothing else may
            reference = _refusing(problem.op, choice)
        if problem.device.type == "cuda":
            if not choice.kernel.graph_safe:
                call = _unless_capturing(call, reference)
            if torch.cuda.device_count() > 1:
                call = _on_device(call, problem.device)
        if problem.writes:
            call = _noticed(call, problem)
        # A lazy negation lives only in views of complex tensors: strided, or of a single element.
        if any(t.numel() == 1 or not t.is_dense() for t in problem.tensors):
            call = _unless_negated(call, reference)
        return call


def _preferring(order: tuple[str, ...], operator: Operator) -> Callable[..., Any]:
    """Carry ``nxcore.use`` over to the backward pass, which runs later and, on CUDA, in another thread."""
    if not order:
        return operator

    def run(*args: Any) -> Any:
        token = PREFERENCE.set(order)
        try:
            return operator(*args)
        finally:
            PREFERENCE.reset(token)

    return run


def _first(call: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Give ``call`` the first ``count`` arguments."""

    def run(*args: Any) -> Any:
        return call(*args[:count])

    return run


def _torch_alone(problem: Problem) -> str:
    """Return why only torch may serve ``problem`` now; empty if any kernel may."""
    if _capturing(problem):
        return "a CUDA graph is being captured and this problem is new: call it once before the capture"
    gradient = problem.spec.gradient
    if problem.needs_grad and (gradient is None or not gradient.covers(*problem.args)):
        return "a gradient is needed, and only torch's autograd knows it"
    return ""


def _refusing(op: str, choice: Choice) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:  # noqa: ARG001
        backend = choice.decision.chosen
        reason = "a CUDA graph is being captured, or a lazy negation is pending"
        raise UnsupportedProblemError(op, backend, [reason])

    return refuse


def _capturing(problem: Problem) -> bool:
    return problem.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _unless_capturing(call: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        return (reference if torch.cuda.is_current_stream_capturing() else call)(*args)

    return guarded


def _on_device(call: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        with torch.cuda.device(device):
            return call(*args)

    return guarded


def _noticed(call: Callable[..., Any], problem: Problem) -> Callable[..., Any]:
    """Let autograd know that ``out`` was written, as torch's own operators do."""
    place = next(i for i, p in enumerate(problem.spec.params) if p.kind == "out")

    def guarded(*args: Any) -> Any:
        if args[place].is_inference() and not torch.is_inference_mode_enabled():
            raise InvalidInputError(
                "out must not be an inference tensor outside torch.inference_mode()", argument="out"
            )
        result = call(*args)
        if not args[place].is_inference():
            torch.autograd.graph.increment_version(args[place])
        return result

    return guarded


def _unless_negated(call: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        negated = any(t.is_neg() for t in tensors_of(args))
        return (reference if negated else call)(*args)

    return guarded


_default: Session | None = None
_default_lock = threading.RLock()


def default() -> Session:
    """Return the session behind ``nxcore.op``; made at first use."""
    global _default  # noqa: PLW0603  the one session of the process
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = Session()
    return _default


def _after_fork() -> None:
    """Give a forked child locks of its own: another thread may have held them at the fork."""
    global _default_lock  # noqa: PLW0603
    _default_lock = threading.RLock()
    if _default is not None:
        _default._lock = threading.RLock()  # noqa: SLF001  the same module's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
