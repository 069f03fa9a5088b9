"""A candidate with its reference: the calls that are made, and what is checked on each."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nxcore.errors import FOREIGN, InvalidInputError, present
from nxcore.spec.problem import leaves
from nxcore.spec.spec import OpSpec
from nxcore.testing.memory import poisoned
from nxcore.testing.referee.gradients import backward, differentiated, gradients
from nxcore.testing.referee.report import Check, Outcome
from nxcore.testing.referee.sensitivity import truth_of
from nxcore.testing.referee.variants import few, others, variants
from nxcore.trust.form import form, marked, misformed, spans
from nxcore.trust.gate import brief
from nxcore.trust.memory import Guarded, Walls, bits, each, same
from nxcore.trust.state import UNCHANGED, State, disturbance
from nxcore.trust.truth import Truth, numbers

Call = Callable[..., Any]


class Case(NamedTuple):
    """One call, with all truths that its checks need: they are computed before the candidate runs."""

    name: str
    args: tuple[Any, ...]
    truth: Truth
    given: bool
    other: tuple[tuple[Any, ...], Truth] | None = None
    gradient: tuple[tuple[Any, ...], Truth] | None = None


class Subject(NamedTuple):
    """A candidate with its reference."""

    candidate: Call
    reference: Call
    generator: torch.Generator
    spec: OpSpec | None = None

    def truth(self, args: tuple[Any, ...]) -> Truth:
        """Return the truth of a call."""
        return Truth.of(self.spec, args) if self.spec else truth_of(self.reference, args, self.generator)

    def fair(self, args: tuple[Any, ...]) -> Truth | None:
        """Return the truth of a call; None if it is large, or torch itself isn't right in that dtype."""
        try:
            with torch.no_grad():
                # First on the CPU, where an index out of range raises: on CUDA it would end the context.
                results = leaves(self.reference(*each(args, lambda t: t.cpu().clone())))
                if not few(sum(y.numel() for y in results)):
                    return None
                truth = self.truth(args)
                return truth if truth.judge(truth.torch, laid_out=False).ok else None
        except FOREIGN:
            return None

    def cases(self, name: str, args: tuple[Any, ...]) -> Iterator[Case]:
        """Yield the sample as given, and the calls that are made of it."""
        try:
            truth = self.truth(args)
        except InvalidInputError:
            raise
        except FOREIGN as error:
            raise InvalidInputError(
                f"the reference failed on {name}: {brief(error)}", argument="samples"
            ) from error
        changed = others(args)
        found = self.fair(changed)
        yield Case(name, args, truth, True, (changed, found) if found else None, self._gradient(args))
        for what, varied in variants(args, self.generator) if self.spec is None else ():
            if not (found := self.fair(varied)):
                continue
            slope = self._gradient(varied) if what in ("other weights", "transposed") else None
            yield Case(f"{name}, {what}", varied, found, False, None, slope)

    def _gradient(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Truth] | None:
        """Return incoming gradients and the truth of the gradients of a call; None if there are none."""
        try:
            outputs = differentiated(self.reference, args)[0]
            drawn = tuple(
                torch.randn(y.shape, generator=self.generator, dtype=torch.float64).to(y) for y in outputs
            )
            if not drawn:
                return None
            truth = truth_of(functools.partial(backward, self.reference), (args, drawn), self.generator)
            return (drawn, truth) if truth.exact and truth.judge(truth.torch, laid_out=False).ok else None
        except FOREIGN:
            return None

    def checks(self, case: Case) -> Iterator[Check]:
        """Yield the checks of a call."""
        if not case.given:
            yield self._result(case, Walls(case.args), laid_out=False)
            if case.gradient:
                yield self._gradients(case)
            return
        yield self._alone(case)  # first: what a call sets once and for all shows at the first
        yield self._result(case, Walls(case.args))
        yield self._unwritten(case)
        yield self._result(case, Walls(case.args, 65, 3.0), "at another address", laid_out=False)
        if case.other:
            yield self._same_address(case, Walls(each(case.args, _dense)))
        if case.gradient:
            yield self._gradients(case)

    def last(self, case: Case) -> Iterator[Check]:
        """Yield what is checked after all calls: the first one again, and the reference."""
        for _ in range(3):
            yield self._result(case, Walls(case.args), "again, after all others")
        with torch.no_grad():
            now = tuple(leaves(self.reference(*each(case.args, torch.clone))))
        kept = same(bits(now), bits(case.truth.torch)) or case.truth.judge(now, laid_out=False).ok
        why = "" if kept else "the reference gives another result than before: what it calls was replaced"
        yield Check("reference", case.name, "passed" if kept else "failed", None, None, why)

    def _run(self, args: tuple[Any, ...]) -> Any:
        with torch.no_grad(), poisoned(warn_only=True):
            return self.candidate(*args)

    def _raised(self, check: str, case: Case, error: BaseException, about: str = "") -> Check:
        outcome: Outcome = "failed" if case.given else "declined"
        return Check(check, _about(case, about), outcome, None, None, f"raised {brief(error)}")

    def _result(self, case: Case, walls: Walls, about: str = "", *, laid_out: bool = True) -> Check:
        """Compare a result; its form, its inputs and the memory around them."""
        try:
            result = self._run(walls.args)
            if walls.changed:
                what = "memory around its inputs" if walls.scratched else "its inputs"
                return Check("inputs", _about(case, about), "failed", None, None, f"it wrote into {what}")
            return self._judged("result", case, case.truth, result, about, laid_out, walls.args)
        except FOREIGN as error:
            return self._raised("result", case, error, about)

    def _judged(
        self,
        check: str,
        case: Case,
        truth: Truth,
        result: Any,
        about: str,
        laid_out: bool,
        inputs: tuple[Any, ...] = (),
    ) -> Check:
        name = _about(case, about)
        if self.spec is None:
            result = _undefined(result, truth, case.args)
        found = truth.judge(result, laid_out=laid_out)
        reason = "" if found.ok else found.reason
        if not reason and laid_out:
            reason = misformed(tuple(leaves(result)), form(truth.torch, spans(list(leaves(inputs)))))
        if not reason:
            reason = next(filter(None, (marked(t, views=False) for t in leaves(result))), "")
        if not reason and any(type(t) is not Tensor for t in leaves(result)):
            reason = "a result must be a plain tensor"
        if not reason and not _views(truth.torch, case.args) and _views(tuple(leaves(result)), inputs):
            reason = "a result must have memory of its own, got a view of an input"
        allowed, why = explained(truth)
        if reason:
            return Check(check, name, "failed", found.error, allowed, reason)
        return Check(check, name, "passed", found.error, allowed, why)

    def _alone(self, case: Case) -> Check:
        """Check that settings of the process and the state of generators stay."""
        device = device_of(case.args)
        args = each(case.args, torch.clone)
        try:
            with torch.no_grad():
                torch.rand(1, device=device)  # so that a seed set anew shows
                before = State.now(device)
                self.candidate(*args)
                why = disturbance(
                    before, device, lambda: self.candidate(*args), lambda: self.reference(*args)
                )
        except FOREIGN as error:
            return self._raised("state", case, error)
        if why:
            before.restore(device)
            return Check("state", case.name, "failed", None, None, f"{UNCHANGED}: {why}")
        return Check("state", case.name, "passed")

    def _unwritten(self, case: Case) -> Check:
        """Check that new memory is written, whatever it held, and that nothing beside it is."""
        args, results = each(case.args, torch.clone), []
        try:
            for fill in (torch.nan, 2.5):
                with torch.no_grad(), Guarded(fill=fill) as guard:
                    results.append(self.candidate(*args))
                if guard.scratched:
                    why = "it wrote outside of memory that it allocated"
                    return Check("memory", case.name, "failed", None, None, why)
        except FOREIGN as error:
            why = f"it can't run in a dispatch mode of torch: {brief(error)}"
            return Check("memory", case.name, "declined", None, None, why)
        wrong = next((r for r in results if not case.truth.judge(r, laid_out=False).ok), None)
        if wrong is None:
            return Check("memory", case.name, "passed")
        reason = case.truth.judge(wrong, laid_out=False).reason
        why = f"new memory that holds other numbers changes it: {reason}"
        return Check("memory", case.name, "failed", None, None, why)

    def _same_address(self, case: Case, walls: Walls) -> Check:
        """Check a second call with other numbers at the same addresses, and that the first result stays."""
        args, truth = present(case.other, "case.other")
        about = "other numbers at the same address"
        try:
            first = tuple(leaves(self._run(walls.args)))
            kept = bits(first)
            with torch.no_grad():
                for mine, new in zip(leaves(walls.args), leaves(args), strict=True):
                    mine.copy_(new)
            result = self._run(walls.args)
        except FOREIGN as error:
            return self._raised("result", case, error, about)
        if not _views(first, walls.args) and not same(kept, bits(first)):
            why = "a second call wrote into the first one's result"
            return Check("result", _about(case, about), "failed", None, None, why)
        return self._judged("result", case, truth, result, about, False, walls.args)

    def _gradients(self, case: Case) -> Check:
        """Compare gradients twice, for incoming ones that aren't uniform and stay as they are."""
        incoming, truth = present(case.gradient, "case.gradient")
        try:
            outputs, xs = differentiated(self.candidate, case.args)
            if not outputs:
                why = "its result can't be differentiated"
                return Check("gradients", case.name, "declined", None, None, why)
            if len(outputs) != len(incoming):
                why = f"{len(incoming)} results must have gradients, got {len(outputs)}"
                return Check("gradients", case.name, "failed", None, None, why)
            walls = Walls(incoming)
            first = gradients(outputs, xs, walls.args)
            kept = bits(first)
            second = gradients(outputs, xs, walls.args)
        except FOREIGN as error:
            return self._raised("gradients", case, error)
        if walls.changed:
            why = "it wrote into the incoming gradient"
            return Check("gradients", case.name, "failed", None, None, why)
        if not same(kept, bits(first)):
            why = "a second backward pass wrote into the first one's gradients"
            return Check("gradients", case.name, "failed", None, None, why)
        found = self._judged("gradients", case, truth, first, "", False)
        again = self._judged("gradients", case, truth, second, "second backward pass", False)
        return found if found.outcome == "failed" else again if again.outcome == "failed" else found


def explained(truth: Truth) -> tuple[float | None, str]:
    """Return the largest relative error in the 2-norm that is allowed, and what it is made of."""
    if truth.bitwise or not all(y.dtype.is_floating_point for y in truth.torch):
        return 0.0, "equal bit for bit"
    worst = None
    for y, exact, scale in zip(truth.torch, truth.exact, truth.scale, strict=True):
        good = exact.isfinite() & y.isfinite()
        if not bool(good.any()):
            continue
        parts = (exact[good], (y[good].double() - exact[good]).abs(), scale.broadcast_to(y.shape)[good])
        norm, apart, reach = numbers([p.double().square().mean().sqrt() for p in parts])
        allowed = truth.allowed(norm, apart, reach, y.dtype, int(good.sum()))
        unit = norm if norm > allowed else 1.0
        if worst is None or allowed / unit > worst[0]:
            worst = (allowed / unit, apart / unit, truth.terms)
    if worst is None:
        return None, "special values alone"
    most, torchs, terms = worst
    return most, f"torch's own error is {torchs:.1e}; sums of {terms} terms"


def _undefined(result: Any, truth: Truth, args: tuple[Any, ...]) -> Any:
    """Return a result of infinite inputs with NaN for an infinity where the truth is NaN.

    Which of the two comes of infinities, as of inf - inf, depends on the formula; no number may come.
    """
    got = tuple(leaves(result))
    if len(got) != len(truth.exact) or not any(bool(t.isinf().any()) for t in leaves(args)):
        return result
    pairs = [
        y.masked_fill(e.isnan() & y.isinf(), torch.nan) if y.shape == e.shape and e.isnan().any() else y
        for y, e in zip(got, truth.exact, strict=True)
    ]
    return result if all(map(operator.is_, pairs, got)) else tuple(pairs)


def _dense(tensor: Tensor) -> Tensor:
    return tensor.contiguous() if 0 in tensor.stride() else tensor


def _views(results: tuple[Tensor, ...], args: tuple[Any, ...]) -> bool:
    own = {t.untyped_storage().data_ptr() for t in leaves(args) if t.numel()}
    return any(t.untyped_storage().data_ptr() in own for t in results if t.numel())


def device_of(args: tuple[Any, ...]) -> torch.device:
    """Return the device of the first tensor."""
    return next(t.device for t in leaves(args))


def _about(case: Case, about: str) -> str:
    return f"{case.name}, {about}" if about else case.name
