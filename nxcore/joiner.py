"""Joiner: from a choice to the call that serves: behind its guards, with its backward operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nxcore.autograd import Differentiable
from nxcore.choice import Choice
from nxcore.dispatch import PREFERENCE, Operator
from nxcore.guards import guarded, of_the_first, preferring, unless_capturing
from nxcore.problem import Problem
from nxcore.registry import Registry
from nxcore.tune import Tuner


class Joiner:
    """Puts what a session wraps around a planned kernel.

    Parameters
    ----------
    registry : Registry
        Where backward operators' specs are.
    tuner : Tuner
        Who knows which kernels would take a problem.
    op : callable
        ``op(name, backend=...)``: the session's operators.
    """

    def __init__(self, registry: Registry, tuner: Tuner, op: Callable[..., Operator]) -> None:
        self.registry, self.tuner, self._op = registry, tuner, op

    def joined(
        self, operator: Operator, problem: Problem, args: tuple[Any, ...], choice: Choice
    ) -> Callable[..., Any]:
        """Return the chosen call, and the one for captured calls beside it where that is another."""
        call = self._alone(operator, problem, args, choice)
        if choice.captured is None:
            return call
        return unless_capturing(call, self._alone(operator, problem, args, choice.captured))

    def _alone(
        self, operator: Operator, problem: Problem, args: tuple[Any, ...], choice: Choice
    ) -> Callable[..., Any]:
        """Return a chosen call behind its guards, joined with its backward operator where one is needed."""
        served, inner, inner_args = self.served(operator, problem, args)
        call, gradient = guarded(choice, inner), operator.spec.gradient
        if served is not operator and choice.native:
            return operator.spec.reference  # whose own autograd keeps what it needs
        if not (problem.needs_grad and gradient and gradient.covers(*args)):
            return call
        call = call if served is operator else of_the_first(call, len(inner_args))
        return self._differentiable(operator, problem, choice, call)

    def served(
        self, operator: Operator, problem: Problem, args: tuple[Any, ...]
    ) -> tuple[Operator, Problem, tuple[Any, ...]]:
        """Return what runs: another operator where a gradient is needed and that one keeps more for it."""
        gradient = operator.spec.gradient
        if not (problem.needs_grad and gradient and gradient.forward and gradient.covers(*args)):
            return operator, problem, args
        inner = self._op(gradient.forward, backend=operator.backend)
        inner_args = args[: len(inner.spec.params)]
        return inner, Problem.of(inner.spec, inner_args), inner_args

    def _differentiable(
        self, operator: Operator, problem: Problem, choice: Choice, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Join ``call`` with its backward operator, unless torch's own autograd would do all of it anyway."""
        spec, gradient = operator.spec, operator.spec.gradient
        assert gradient is not None  # noqa: S101  the caller looked
        backward = self.registry.spec(gradient.op)
        native = choice.native and choice.decision.chosen == "torch" and operator.backend is None
        if native and not self._backward_candidates(problem):
            return call
        return Differentiable(
            spec=spec,
            described=problem.args,
            gradient=gradient,
            forward=call,
            backward=preferring(PREFERENCE.get(), self._op(gradient.op, backend=operator.backend)),
            reference=backward.reference,
        )

    def _backward_candidates(self, problem: Problem) -> list[str]:
        """Return the kernels that would take the gradient of ``problem``, laid out as the output."""
        gradient = problem.spec.gradient
        assert gradient is not None  # noqa: S101  the caller looked
        backward = self.registry.spec(gradient.op)
        mask = (True,) * len(problem.tensors)
        # Any number of that type will do.
        values = tuple(1 if isinstance(a, type) else a for a in problem.args)
        described = Problem.of(backward, gradient.args(problem.outputs, mask, *values))
        return [] if described.view else self.tuner.accepting(described, PREFERENCE.get().backends)
