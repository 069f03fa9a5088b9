"""Joiner: from a choice to the final call, with its wrappers and its backward operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from nxcore.call.gradient_route import Crossing
from nxcore.call.operator import Operator, Plan, Resolver
from nxcore.call.wrappers import guarded, of_the_first, preferring, unless_capturing
from nxcore.choose.chooser import Chooser
from nxcore.choose.contenders import Choice
from nxcore.choose.learn.exploration import Beside, Call, exploration
from nxcore.context import PREFERENCE, Observer, Purpose
from nxcore.errors import present
from nxcore.interop import native
from nxcore.interop.autograd import Differentiable
from nxcore.interop.held import Held, held
from nxcore.spec.problem import Problem, tensors_of


def from_any_depth(resolve: Resolver) -> Resolver:
    """Return what finds a plan, or torch's for one call that is too deep in a recursion for that."""

    def resolved(operator: Operator, args: tuple[Any, ...], met: int) -> Plan:
        try:
            return resolve(operator, args, met)
        except RecursionError:
            if operator.backend not in (None, "torch"):
                raise
            return Plan(operator.spec.reference, "torch", keep=False)

    return resolved


class Joiner:
    """Wraps the plan of a choice, and joins it with its backward operator, which ``op`` returns by name."""

    def __init__(self, chooser: Chooser, op: Callable[..., Operator]) -> None:
        self.chooser, self.tuner, self.registry, self._op = chooser, chooser.tuner, chooser.tuner.registry, op

    def joined(
        self, operator: Operator, problem: Problem, args: tuple[Any, ...], choice: Choice, met: int = 0
    ) -> Call:
        """Return the chosen call, switched with that for captured calls if they differ.

        ``met`` is the number of earlier calls, which count for an exploration.
        """
        if PREFERENCE.get().observers:
            self._tell(operator, problem, args)
        if met and (explored := exploration(choice.call)):
            explored.met(met)
        call = self._alone(operator, problem, args, choice, met)
        if choice.captured is None:
            return call
        captured = self._alone(operator, problem, args, choice.captured, met, only_captured=True)
        eager, other = (getattr(made, "of", None) for made in (call, captured))
        if isinstance(eager, Crossing) and isinstance(other, Crossing):
            eager.beside = other  # no backward pass follows a captured call: the eager ones' settle both
        return unless_capturing(call, captured)

    def _alone(
        self,
        operator: Operator,
        problem: Problem,
        args: tuple[Any, ...],
        choice: Choice,
        met: int,
        *,
        only_captured: bool = False,
    ) -> Call:
        """Return a chosen call with its wrappers, joined with its backward operator if one is needed."""
        if choice.alone and PREFERENCE.get().purpose is Purpose.WAIT:
            return operator.spec.reference  # its gradient is torch's own too
        served, inner, inner_args = self.served(operator, problem, args)
        call, gradient = guarded(self.chooser.watches.over(choice, inner), inner), operator.spec.gradient
        explored = exploration(choice.call)
        if served is not operator and (choice.native or explored):
            torchs = operator.spec.reference  # whose own autograd saves its tensors
            return Beside(explored, torchs).call if explored else torchs
        if not (problem.needs_grad and gradient and gradient.covers(*args)):
            return call
        call = call if served is operator else of_the_first(call, len(inner_args))
        return self._differentiable(operator, problem, args, choice, call, met, only_captured=only_captured)

    def served(
        self, operator: Operator, problem: Problem, args: tuple[Any, ...]
    ) -> tuple[Operator, Problem, tuple[Any, ...]]:
        """Return the operator that runs: the gradient's own forward operator, if a gradient is needed."""
        gradient = operator.spec.gradient
        if not (problem.needs_grad and gradient and gradient.forward and gradient.covers(*args)):
            return operator, problem, args
        inner = self._op(gradient.forward, backend=operator.backend)
        inner_args = args[: len(inner.spec.params)]
        return inner, Problem.of(inner.spec, inner_args), inner_args

    def _differentiable(
        self,
        operator: Operator,
        problem: Problem,
        args: tuple[Any, ...],
        choice: Choice,
        call: Call,
        met: int,
        *,
        only_captured: bool,
    ) -> Call:
        """Join ``call`` with its backward operator, unless torch serves both ways."""
        gradient, order = present(operator.spec.gradient, "gradient"), PREFERENCE.get()
        spec, forward = self.registry.spec(gradient.op), operator.spec
        found: list[Held] = []
        args = pytree.tree_map_only(Tensor, _parted, args)

        def bridge(backward: Call) -> Call:
            if not found:
                found.append(held(forward.reference, args))
            made = Differentiable(forward, problem.args, gradient, call, backward, spec.reference, found[0])
            extension = native.of(operator)
            return made if extension is None else made.compiled(extension)

        differentiate = self._op(gradient.op, backend=operator.backend)
        backward = preferring(order, differentiate)
        if operator.backend is not None:
            return bridge(backward)
        explored = exploration(choice.call)
        traces = [o for o in order.observers if o.sees_both_ways]
        inner = self.served(operator, problem, args)[1]
        described = None if gradient.forward else self._described(problem, args)
        known = self.chooser.known(described) if described else None
        torch_only = described and (
            described.view
            or not self.tuner.accepting(described, order.backends)
            or self.chooser.stays(described)
        )
        if torch_only and described and not explored and not (known and exploration(known.call)):
            if choice.alone:
                return call
            known = known or self.tuner.stay(described, None, "no other kernel accepts it")
        learner, policy = self.chooser.learner, self.chooser.policy
        if policy == "measure" and self.chooser.in_force == "auto":
            policy = "auto"  # a problem is measured before a capture; what joins both ways isn't captured
        if order.purpose is Purpose.FIND:
            policy = "known"  # of a pair whose halves aren't known nothing is to be measured
        crossing = Crossing(
            problem,
            tuple(t.requires_grad for t in tensors_of(args)),
            (inner, choice),
            bridge=bridge,
            backward=backward,
            unobserved=preferring(order._replace(observers=()), differentiate),
            find=preferring(order, functools.partial(self._found, spec.name, traces, inner)),
            pairs=self.chooser.pairs,
            policy=policy,
            later=learner.preparing.add,
            aside=self.chooser.watches.aside,
            met=met,
            only_captured=only_captured,
        )
        if described and known and (explored is None or explored.known):
            crossing.settle((described, known))
        return crossing.call

    def _tell(self, operator: Operator, problem: Problem, args: tuple[Any, ...]) -> None:
        """Report to the observers of both ways the gradient's problem, which torch may compute by itself."""
        gradient = operator.spec.gradient
        if not (problem.needs_grad and gradient and gradient.covers(*args)):
            return
        traces = [o for o in PREFERENCE.get().observers if o.sees_both_ways]
        if not traces:
            return
        inner = self.served(operator, problem, args)[1]
        described = self._described(problem, args, inner)
        for trace in traces:
            trace.paired(inner, described, guessed=True)

    def _described(self, problem: Problem, args: tuple[Any, ...], inner: Problem | None = None) -> Problem:
        """Return the problem of the gradient of ``problem``, with the layout of the output.

        ``inner`` is the problem of the gradient's own forward operator, if it has one.
        """
        gradient = present(problem.spec.gradient, "gradient")
        mask = tuple(t.requires_grad for t in tensors_of(args))
        # Any number of that type works.
        values = tuple(a(1) if isinstance(a, type) else a for a in problem.args)
        outputs = inner.outputs if inner and gradient.forward else problem.outputs
        grad, *kept = outputs if gradient.keeps or gradient.forward else (outputs,)
        kept += [grad] * gradient.result
        return Problem.of(self.registry.spec(gradient.op), gradient.args(grad, mask, *values, *kept))

    def _found(
        self, name: str, traces: Sequence[Observer], forward: Problem, *arguments: Any
    ) -> tuple[Problem, Choice] | None:
        operator = self._op(name)
        problem = Problem.of(operator.spec, operator.frozen(arguments))
        for trace in traces:
            trace.paired(forward, problem)
        if (known := self.chooser.known(problem)) is None:
            operator.acquaint(*arguments)  # it was met rarely
            known = self.chooser.known(problem)
        return None if known is None else (problem, known)


def _parted(tensor: Tensor) -> Tensor:
    """Return a tensor without its graph: a plan outlives the call that it was made for."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
