"""Contender and Choice: a candidate with its planned call, and the result of a choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nxcore.errors import MeasurementError, present
from nxcore.measure import busy, race
from nxcore.measure.decision import Candidate, Decision, decide, settled, winners
from nxcore.measure.timing import REGIMES, Regime, Timing
from nxcore.registry.reference import TorchKernel
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.problem import Problem, TensorMeta, leaves
from nxcore.trust.form import twin
from nxcore.trust.gate import brief
from nxcore.trust.rows import DEPENDENCE

PROBLEMS = 4096
"""The most choices, pairs, watches and waiting problems of a process, and recorded shapes of an operator;
beyond it the oldest are dropped. Of pages as points of families all are read again beyond it."""

AGAIN = "torch again"
"""The second entry of torch's fastest way in every race: the A/A row."""

SHIPPED, FAMILY = "shipped or related", "family"
"""The rungs of the ladder whose figures are of other machines or other sizes."""

PASSING = (Code.RAISED, Code.MEMORY, Code.UNMEASURED, Code.UNCOMPILED)
"""The codes of refusals that may not apply in another process."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A candidate with its kernel and planned call.

    Attributes
    ----------
    backend, kernel
        The kernel and its backend.
    candidate : Candidate
        Its refusal, error and timing.
    call : callable, optional
        The planned kernel, unless it is rejected.
    """

    backend: Backend
    kernel: Kernel
    candidate: Candidate
    call: Callable[..., Any] | None = None

    @property
    def races(self) -> bool:
        """Whether its time counts: it can serve the call, and no interpreter runs it."""
        return bool(self.call and not self.candidate.refusal and not self.candidate.simulated)


@dataclass(slots=True)
class Candidacy:
    """A kernel for a problem, and what is known of both: found once, and handed on.

    Attributes
    ----------
    backend, kernel
        The kernel and its backend.
    simulated : bool
        Whether an interpreter or simulator runs it, by its probe.
    refusal : Refusal, optional
        Why it is rejected, by the machine, the call or the quarantine.
    entry : Contender, optional
        The verified and planned kernel, if it hasn't run yet.
    """

    backend: Backend
    kernel: Kernel
    simulated: bool = False
    refusal: Refusal | None = None
    entry: Contender | None = None

    @property
    def label(self) -> str:
        """The kernel's name."""
        return self.backend.label(self.kernel)

    @property
    def able(self) -> bool:
        """Whether it may serve the problem."""
        return not (self.refusal or self.simulated or yardstick(self.kernel))


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision and the planned call of the winner.

    Attributes
    ----------
    decision : Decision
        The winner, the rule and the reason.
    call : callable
        The planned kernel.
    kernel : Kernel
        The winner.
    backend : Backend
        The kernel's backend.
    runners_up : tuple of Contender
        The other kernels that are faster than torch's own, the fastest first.
    again : Timing, optional
        The A/A row, if it was measured now.
    captured : Choice, optional
        The choice for captured calls, if it differs.
    saves_us : float, optional
        The microseconds that it saves, where its own times aren't known: the least of the sizes around it.
    rung : str
        The rung of the ladder that answered; empty where the ladder wasn't needed.
    """

    decision: Decision
    call: Callable[..., Any]
    kernel: Kernel
    backend: Backend
    runners_up: tuple[Contender, ...] = ()
    again: Timing | None = None
    captured: Choice | None = None
    saves_us: float | None = None
    rung: str = ""

    @property
    def foreign(self) -> bool:
        """Whether its figures come with the package or from an imported file, or are of other sizes."""
        return self.rung in (SHIPPED, FAMILY)

    @property
    def native(self) -> bool:
        """Whether torch runs it, and no exploration is under way."""
        return isinstance(self.kernel, TorchKernel) and self.decision.rule != "exploring"

    @property
    def alone(self) -> bool:
        """Whether torch's reference serves, not one of its idioms."""
        return self.native and self.decision.chosen == "torch"

    def falls_on(self, kernel: Kernel) -> bool:
        """Return whether ``kernel`` was chosen, for eager calls or for captured ones."""
        return kernel is self.kernel or (self.captured is not None and kernel is self.captured.kernel)


def yardstick(kernel: Kernel) -> bool:
    """Return whether a kernel is only timed, never served; see ``OpSpec.yardsticks``."""
    return isinstance(kernel, TorchKernel) and kernel.yardstick


def regimes(problem: Problem) -> tuple[Regime, ...]:
    """Return the regimes in which calls of ``problem`` can be made."""
    return REGIMES if problem.device.type == "cuda" else REGIMES[:1]


def decided(
    problem: Problem,
    candidates: Sequence[Candidate],
    again: Timing | None,
    entries: Sequence[Contender],
    *,
    before: Decision | None = None,
) -> Decision:
    """Decide for eager calls, and on CUDA for captured ones too. The winners ``before`` stay at ties."""
    held = before.chosen if before else ""
    decision = busy.judged(servable(decide(candidates, again, incumbent=held), entries))
    if "captured" not in regimes(problem):
        return decision
    held = before.captured.chosen if before and before.captured else held
    captured = servable(decide(candidates, again, "captured", held), entries, "captured")
    return replace(decision, captured=replace(captured, candidates=()))


def servable(decision: Decision, entries: Sequence[Contender], regime: Regime = "eager") -> Decision:
    """Replace a yardstick that won by the fastest of torch's ways."""
    aside = {e.candidate.label for e in entries if yardstick(e.kernel)}
    if decision.chosen not in aside:
        return decision
    native = (c for c in decision.candidates if c.native and c.timing and c.label not in aside)
    best = min(native, key=lambda c: c.timing.median(regime) if c.timing else 0.0)
    reason = (
        f"{decision.reason}; {decision.chosen} is faster but returns another result, so {best.label} runs"
    )
    return replace(decision, chosen=best.label, reason=reason)


def passing(refusal: Refusal | None) -> bool:
    """Return whether a refusal applies only to this process, or is temporary."""
    return refusal is not None and refusal.code in PASSING


def left_out(backend: Backend, kernel: Kernel, why: str = "") -> Contender:
    """Return a kernel that was left out, for the reason ``why`` or since its backend runs on request only."""
    on_request = f"only on request: {backend.on_request}; request it by backend={backend.name!r}"
    refusal = Refusal(Code.POLICY, why) if why else Refusal(Code.ON_REQUEST, on_request)
    return turned_down(backend, kernel, refusal)


def turned_down(backend: Backend, kernel: Kernel, refusal: Refusal) -> Contender:
    """Return a kernel that was left out by ``refusal``, without a check of its own."""
    return Contender(backend, kernel, refused(backend, kernel, refusal))


def refused(backend: Backend, kernel: Kernel, refusal: Refusal) -> Candidate:
    """Return the row of a kernel that was left out by ``refusal``."""
    return Candidate(backend.label(kernel), backend.name, refusal=refusal, graph_safe=kernel.graph_safe)


def uncontested(problem: Problem, entries: Sequence[Contender]) -> str:
    """Return why torch serves without a race; empty where there is something to race."""
    if problem.view:
        return "a view: there is nothing to run"
    if sum(e.races for e in entries) == 1:
        refusals = ((e.candidate.label, e.candidate.refusal) for e in entries)
        pruned = [label for label, refusal in refusals if refusal and refusal.code is Code.PRUNED]
        promise = f"no other kernel promises to be faster: {', '.join(pruned)} were not compiled"
        return promise if pruned else "no kernel of another backend can run this call"
    if any(m.numel() == 0 for m in leaves_of(problem.outputs)):
        return "there is nothing to compute"
    return ""


def carry_out(decision: Decision, entries: Sequence[Contender]) -> Choice:
    """Return the choice of a decision: the winner's call, and all others faster than torch's own."""
    called = {e.candidate.label: e for e in entries if e.call is not None}
    chosen = called.get(decision.chosen)
    if chosen is None or chosen.call is None:
        raise AssertionError(f"{decision.chosen!r} was chosen and has no call")
    others = sorted(winners(decision.candidates), key=lambda c: c.timing.median_us if c.timing else 0.0)
    behind = tuple(
        called[c.label]
        for c in others
        if c.label != decision.chosen and not yardstick(called[c.label].kernel)
    )
    choice = Choice(decision, chosen.call, chosen.kernel, chosen.backend, behind)
    if decision.captured is None or decision.captured.chosen == decision.chosen:
        return choice
    entry = called[decision.captured.chosen]
    return replace(
        choice,
        captured=Choice(decision.captured, present(entry.call, "entry.call"), entry.kernel, entry.backend),
    )


def timed(candidates: Sequence[Candidate], timings: Mapping[str, Timing]) -> list[Candidate]:
    """Return candidates with their timings, None for those without."""
    return [replace(c, timing=timings.get(c.label)) for c in candidates]


def settles(problem: Problem, candidates: Sequence[Candidate], effort: race.Effort) -> race.Settled:
    """Return a function of timings: whether it is settled which candidates are faster than torch."""
    rows = regimes(problem)

    def clear(seen: Mapping[str, Timing]) -> bool:
        by_far = effort.ahead(seen)
        return settled(timed(candidates, seen), seen.get(AGAIN), rows, race.left(seen), by_far=by_far)

    return clear


def private_out(problem: Problem, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace ``out`` by new memory with the same layout, and small arguments by copies.

    A race must not write into the caller's, nor a kernel that has no watch yet.
    """
    if sum(t.nbytes for t in leaves(args)) <= DEPENDENCE:
        args = twin(args)
    return tuple(
        TensorMeta.of(a).empty() if p.kind == "out" and a is not None else a
        for p, a in zip(problem.spec.params, args, strict=True)
    )


def leaves_of(outputs: Any) -> list[TensorMeta]:
    """Return the tensor descriptions in ``Problem.outputs``, without None."""
    if isinstance(outputs, TensorMeta):
        return [outputs]
    return [m for o in outputs or () for m in leaves_of(o)]


def unmeasured(error: Exception) -> str:
    """Say why a race gave no figures."""
    if isinstance(error, torch.OutOfMemoryError):
        return "not measured: out of memory"
    return f"not measured: {error if isinstance(error, MeasurementError) else brief(error)}"


def guess(choice: Choice) -> Choice:
    """Return a choice as one that isn't based on the problem itself."""
    return replace(choice, decision=replace(choice.decision, rule="prior"))


def promised(choice: Choice) -> Choice:
    """Return a choice of torch's own as one of a kernel, for a run that finds what a capture requires.

    Where torch serves an operator, modules run the parts that it consists of, which would be measured too.
    """

    def run(*args: Any) -> Any:  # another function than the reference, by which torch's choices are known
        return choice.call(*args)

    return guess(replace(choice, call=run))
