"""Entry and Choice: a candidate on its way, and what came of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nxcore.errors import VerificationError
from nxcore.measure.decision import Candidate, Decision, decide, winners
from nxcore.measure.timing import REGIMES, Regime, Timing
from nxcore.registry.reference import TorchKernel
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.problem import Problem, TensorMeta, leaves

AGAIN = "torch again"
"""The second entry of torch's fastest way in every race: the A/A row."""

PASSING = (Code.RAISED, Code.MEMORY, Code.UNMEASURED)
"""The codes of refusals that another process need not meet."""


@dataclass(frozen=True, slots=True)
class Contender:
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
    again : Timing, optional
        The A/A row, where it was measured now.
    captured : Choice, optional
        What serves where a CUDA graph is captured, where that is another one.
    """

    decision: Decision
    call: Callable[..., Any]
    kernel: Kernel
    backend: Backend
    runners_up: tuple[Contender, ...] = ()
    again: Timing | None = None
    captured: Choice | None = None

    @property
    def native(self) -> bool:
        """Whether torch itself runs it, and nobody else takes turns."""
        return isinstance(self.kernel, TorchKernel) and self.decision.rule != "exploring"

    def falls_on(self, kernel: Kernel) -> bool:
        """Return whether ``kernel`` was chosen, for eager calls or for captured ones."""
        return kernel is self.kernel or (self.captured is not None and kernel is self.captured.kernel)


def yardstick(kernel: Kernel) -> bool:
    """Return whether a kernel is timed and never called to serve: see ``OpSpec.yardsticks``."""
    return isinstance(kernel, TorchKernel) and kernel.yardstick


def regimes(problem: Problem) -> tuple[Regime, ...]:
    """Return how calls like ``problem`` can be made."""
    return REGIMES if problem.device.type == "cuda" else REGIMES[:1]


def decided(
    problem: Problem,
    candidates: Sequence[Candidate],
    again: Timing | None,
    entries: Sequence[Contender],
    *,
    learnt: bool = False,
) -> Decision:
    """Decide for eager calls, and on CUDA for captured ones too.

    Where it was ``learnt`` from calls, a device's time holds what it waited for the host: to win under
    capture, all of a kernel's time must be less than what torch's is at the least.
    """
    decision = servable(decide(candidates, again), entries)
    if "captured" not in regimes(problem):
        return decision
    if learnt:
        candidates = [
            replace(c, timing=c.timing.without_gaps()) if c.native and c.timing else c for c in candidates
        ]
        again = again.without_gaps() if again else None
    captured = servable(decide(candidates, again, "captured"), entries, "captured")
    return replace(decision, captured=replace(captured, candidates=()))


def servable(decision: Decision, entries: Sequence[Contender], regime: Regime = "eager") -> Decision:
    """Put the fastest of torch's ways in place of a yardstick that won."""
    aside = {e.candidate.label for e in entries if yardstick(e.kernel)}
    if decision.chosen not in aside:
        return decision
    native = (c for c in decision.candidates if c.native and c.timing and c.label not in aside)
    best = min(native, key=lambda c: c.timing.median(regime) if c.timing else 0.0)
    reason = f"{decision.reason}; {decision.chosen} answers otherwise, so {best.label} serves"
    return replace(decision, chosen=best.label, reason=reason)


def passing(refusal: Refusal | None) -> bool:
    """Return whether a refusal is a matter of this process and this moment."""
    return refusal is not None and refusal.code in PASSING


def left_out(backend: Backend, kernel: Kernel, why: str = "") -> Contender:
    """Enter a kernel that nobody asked: ``why``, or since its backend takes part on request alone."""
    on_request = f"only on request: {backend.on_request}; ask for it by backend={backend.name!r}"
    refusal = Refusal(Code.POLICY, why) if why else Refusal(Code.ON_REQUEST, on_request)
    label = backend.label(kernel)
    candidate = Candidate(label, backend.name, refusal=refusal, graph_safe=kernel.graph_safe)
    return Contender(backend, kernel, candidate)


def carry_out(decision: Decision, entries: Sequence[Contender]) -> Choice:
    """Return the choice of a decision: the chosen call, and who else is faster than torch's own."""
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
    assert entry.call is not None  # noqa: S101  see above
    return replace(choice, captured=Choice(decision.captured, entry.call, entry.kernel, entry.backend))


def timed(candidates: Sequence[Candidate], timings: Mapping[str, Timing]) -> list[Candidate]:
    """Return candidates with their timings, None where there is none."""
    return [replace(c, timing=timings.get(c.label)) for c in candidates]


def private_out(problem: Problem, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give ``out`` memory of its own, laid out alike: a race must not write into the caller's."""
    return tuple(
        TensorMeta.of(a).empty() if p.kind == "out" and a is not None else a
        for p, a in zip(problem.spec.params, args, strict=True)
    )


def try_once(call: Callable[..., Any], problem: Problem, args: tuple[Any, ...]) -> None:
    """Run the real call: what raises does so here, and a result laid out otherwise is another answer."""
    with torch.no_grad():
        result = call(*private_out(problem, args))
    if not problem.writes:  # else the result lies where the caller said
        check_result(result, problem)


def check_result(result: Any, problem: Problem) -> None:
    """Refuse a result that isn't of torch's shapes, dtypes and strides.

    Raises
    ------
    VerificationError
        Naming both.
    """
    for i, (got, like) in enumerate(zip(tuple(leaves(result)), leaves_of(problem.outputs), strict=True)):
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
