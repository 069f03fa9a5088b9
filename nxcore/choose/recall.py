"""Recall: decisions from records or a lock, applied again; new kernels are measured in addition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose.contenders import SHIPPED, Choice, Contender, decided, left_out, passing, refused
from nxcore.choose.explanation import Origin
from nxcore.choose.tuner import Tuner
from nxcore.errors import UnsupportedProblemError
from nxcore.measure.busy import INCONCLUSIVE
from nxcore.measure.decision import Candidate, Decision
from nxcore.measure.timing import Timing
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.problem import Problem
from nxcore.store.pages import Page
from nxcore.store.wisdom import Wisdom

ANEW = Refusal(Code.UNMEASURED, "not measured in its present version")
ELSEWHERE = Refusal(Code.UNMEASURED, "it took no part where the figures were measured")


def _on_request(candidate: Candidate) -> bool:
    return candidate.refusal is not None and candidate.refusal.code is Code.ON_REQUEST


class Recall:
    """Writes a tuner's measurements to wisdom, and reads them.

    Parameters
    ----------
    tuner : Tuner
        Measures candidates.
    wisdom : Wisdom
        Holds the measurements.

    Attributes
    ----------
    pruned : callable
        Returns the refusals of kernels of a problem that aren't worth a compiler's seconds; none by default.
    """

    def __init__(self, tuner: Tuner, wisdom: Wisdom) -> None:
        self.tuner, self.wisdom = tuner, wisdom
        self.pruned: Callable[[Problem], Mapping[str, Refusal]] = lambda _: {}

    def locked(self, problem: Problem, args: tuple[Any, ...], label: str, *, strict: bool) -> Choice:
        """Return the kernel that a lock names, or torch's reference where it can't serve.

        Raises
        ------
        UnsupportedProblemError
            If it can't serve, and ``strict`` is set.
        """
        owned = [(b, k) for b, k in self.tuner.registry.kernels(problem.op) if b.label(k) == label]
        why = "it isn't installed"
        if owned:
            entry = self.tuner.enter(*owned[0], problem, args)
            if entry.call is not None:
                decision = Decision(label, "locked", "the lock names it", (entry.candidate,))
                return Choice(decision, entry.call, entry.kernel, entry.backend)
            why = str(entry.candidate.refusal)
        if strict:
            raise UnsupportedProblemError(problem.op, label, [f"the lock names it, and {why}"])
        return self.tuner.stay(problem, None, f"the lock names {label}, and {why}")

    def make(self, backend: Backend, kernel: Kernel) -> str:
        """Return the identity for which a kernel's times count; empty where changes can't be detected."""
        return self.tuner.gate.identity(backend, kernel).kernel

    def kept(
        self, problem: Problem, args: tuple[Any, ...], choice: Choice, policy: str = "measure"
    ) -> Choice:
        """Keep measurements; return the choice that serves from now on.

        If the race gave no decision, and an earlier one did, that is the earlier winner.
        """
        if self.keep(problem, choice.decision, choice.again, policy):
            return choice
        return self.recall(problem, args, "known") or choice

    def keep(
        self, problem: Problem, decision: Decision, again: Timing | None, policy: str = "measure"
    ) -> bool:
        """Write measurements for the next process, unless temporary refusals left out a candidate.

        Returns
        -------
        bool
            False if the race gave no decision.
        """
        if decision.rule == INCONCLUSIVE:
            return False
        owned = self.tuner.taking_part(problem.op)
        makes = {b.label(k): self.make(b, k) for b, k in owned}
        if again is None or not all(makes.values()) or any(passing(c.refusal) for c in decision.candidates):
            return True
        late = [
            b.label(k)
            for b, k in owned
            if decision[b.label(k)].refusal and not self.tuner.refusal(b, k, problem)
        ]
        found = Page(decision, again, makes, tuple(late), policy, versions=self.versions(problem))
        self.wisdom.write(problem, found)
        return True

    def before(self, problem: Problem) -> Decision | None:
        """Return the decision on record, whose winners stay at ties; None without one."""
        page = self.wisdom.read(problem)
        return None if page is None else page.decision

    def versions(self, problem: Problem) -> dict[str, Any]:
        """Return the versions that figures of ``problem`` depend on: torch, and the device's driver."""
        own = self.tuner.taking_part(problem.op)[0]
        device = self.tuner.gate.suspect(*own, problem.device, problem.dtype).device
        return {**device, "torch": str(torch.__version__)}

    def stale(self, problem: Problem, page: Page) -> str:
        """Return the changes since ``page`` was written; empty if there are none."""
        now = self.versions(problem)
        changed = [
            f"{name} was {page.versions.get(name)}, is {now.get(name)}"
            for name in sorted({*now, *page.versions})
            if now.get(name) != page.versions.get(name)
        ]
        makes = {b.label(k): self.make(b, k) for b, k in self.tuner.taking_part(problem.op)}
        changed += [f"{label} was removed" for label in sorted({*page.makes} - {*makes})]
        changed += [f"{label} is new" for label in sorted({*makes} - {*page.makes})]
        changed += [
            f"{label} has changed"
            for label in sorted({*makes} & {*page.makes})
            if makes[label] != page.makes[label]
        ]
        return "; ".join(changed)

    def origin(self, problem: Problem, decision: Decision) -> Origin | None:
        """Return where the figures of a decision come from; None if it has none on record."""
        if decision.rule not in ("measured", "reference"):
            return None
        page = self.wisdom.known(problem)
        if page is None or page.decision.chosen != decision.chosen:
            return None
        return Origin(page.policy, page.date, page.versions, self.stale(problem, page), page.device)

    def related(self, problem: Problem, args: tuple[Any, ...]) -> Choice | None:
        """Return the decision on record for a related device, None if there is no promising one.

        It serves until it is confirmed or contradicted here: no race precedes it.
        """
        found = None if problem.view else self.wisdom.related(problem)
        choice = None if found is None else self.recall(problem, args, "auto", page=found)
        return None if choice is None or choice.alone else choice

    def recall(
        self,
        problem: Problem,
        args: tuple[Any, ...],
        policy: str,
        *,
        checking: bool = False,
        page: Page | None = None,
        at_once: bool = False,
    ) -> Choice | None:
        """Return the recorded decision, None if the problem is to be measured again.

        For new or changed kernels, ``measure`` measures these alone, and ``auto`` explores the whole
        problem again, so None. Any other policy leaves them out. ``auto`` leaves out kernels that took no
        part in figures of elsewhere too, or lost there, and so does ``measure`` in its place, ``at_once``:
        one plugin more here, or a loser that has changed, doesn't have a known problem learnt anew.
        ``measure`` prunes what it would have to compile.
        Kernels with unchanged figures are checked again only if the chosen one can't serve any more:
        ``checking``. ``page`` has the figures; by default those on record for the problem's device.
        """
        page = page or (None if problem.view else self.wisdom.read(problem))
        if page is None:
            return None
        leaves = page.foreign and (at_once or policy == "auto")
        candidates, new, changed = self._sorted(problem, page, leaves=leaves, checking=checking)
        if (new or changed) and not checking:
            return self.recall(problem, args, policy, checking=True, page=page, at_once=at_once)
        if new and policy == "measure":
            pruned = self.pruned(problem)
            out = [(b, k, pruned[b.label(k)]) for b, k in new if b.label(k) in pruned]
            candidates += [refused(b, k, why) for b, k, why in out]
            new = [(b, k) for b, k in new if b.label(k) not in pruned]
            if new:
                return self._joined(problem, args, page, candidates, new)
        if new and (policy == "auto" or not (candidates and candidates[0].native)):
            return None
        candidates += [refused(b, k, ANEW) for b, k in new]
        if new or changed:
            decision = self._decided(problem, candidates, page)
        else:
            decision = replace(page.decision, candidates=tuple(candidates))
        choice = self._carried(problem, args, self._with_left_out(problem.op, decision))
        then, now = page.decision, choice.decision
        captured = (choice.captured or choice).decision.chosen == (then.captured or then).chosen
        if not checking and not (captured and now.chosen == then.chosen):
            return self.recall(problem, args, policy, checking=True, page=page, at_once=at_once)
        return replace(choice, rung=SHIPPED if page.foreign else "")

    def _sorted(
        self, problem: Problem, page: Page, *, leaves: bool, checking: bool
    ) -> tuple[list[Candidate], list[tuple[Backend, Kernel]], bool]:
        """Compare a page with the kernels that are installed.

        Parameters
        ----------
        problem : Problem
        page : Page
        leaves : bool
            Whether kernels stay out that took no part in the page's figures, or lost there.
        checking : bool
            Whether kernels with unchanged figures are checked again.

        Returns
        -------
        candidates : list of Candidate
            Those whose figures count, and those that are refused.
        new : list of tuple
            The kernels without figures that count.
        changed : bool
            Whether a kernel that was timed can't take part any more.
        """
        known = {c.label: c for c in page.decision.candidates if not _on_request(c)}
        winners = {page.decision.chosen, (page.decision.captured or page.decision).chosen}
        candidates: list[Candidate] = []
        new: list[tuple[Backend, Kernel]] = []
        changed = False
        for backend, kernel in self.tuner.taking_part(problem.op):
            label = backend.label(kernel)
            before = known.pop(label, None)
            if leaves and before is None and label not in page.makes:
                candidates.append(refused(backend, kernel, ELSEWHERE))
                continue
            if leaves and not checking and before is not None and not (before.native or label in winners):
                candidates.append(before)  # changed or not, no race is begun for it: its identity takes time
                continue
            same = before is not None and page.makes.get(label) == self.make(backend, kernel)
            told = before is not None and same and self._told(before, backend, kernel)
            refusal = None if told and not checking else self.tuner.refusal(backend, kernel, problem)
            if refusal:
                changed |= before is not None and before.timing is not None
                candidates.append(refused(backend, kernel, refusal))
            elif before is not None and (told or (same and label in page.late)):
                candidates.append(before)
            else:
                new.append((backend, kernel))
        changed |= any(c.timing for c in known.values())  # the remaining ones aren't installed any more
        return candidates, new, changed

    def _told(self, before: Candidate, backend: Backend, kernel: Kernel) -> bool:
        """Return whether a kernel needs no new check: it was timed, or is simulated."""
        simulated = before.simulated and self.tuner.registry.probe(backend, kernel).simulated
        return simulated or before.timing is not None

    def _joined(
        self,
        problem: Problem,
        args: tuple[Any, ...],
        page: Page,
        known: Sequence[Candidate],
        new: Sequence[tuple[Backend, Kernel]],
    ) -> Choice:
        """Race new kernels against torch's own, and add them to the recorded ones."""
        native = [
            (b, k) for b, k in self.tuner.taking_part(problem.op) if b.name == "torch" and (b, k) not in new
        ]
        entries = [self.tuner.enter(b, k, problem, args) for b, k in [*native, *new]]
        raced = self.tuner.measured(problem, args, entries).decision
        labels = {b.label(k) for b, k in new}
        if raced.rule == INCONCLUSIVE:
            why = Refusal(Code.UNMEASURED, f"not measured: {raced.reason}")
            noisy = (replace(c, refusal=c.refusal or why) if c.timing else c for c in raced.candidates)
            raced = replace(raced, candidates=tuple(noisy))
        found = {c.label: c for c in known} | {c.label: c for c in raced.candidates if c.label in labels}
        if (then := found["torch"].timing) and (now := raced["torch"].timing):
            # Only the ratios are comparable: convert times to the scale of the earlier race.
            found |= {
                c.label: replace(c, timing=c.timing.paced(then, now))
                for c in raced.candidates
                if c.timing and c.label in labels
            }
        order = [found[b.label(k)] for b, k in self.tuner.taking_part(problem.op)]
        decision = self._with_left_out(problem.op, self._decided(problem, order, page))
        self.keep(problem, decision, page.again, page.policy)
        return self._carried(problem, args, decision)

    def _with_left_out(self, op: str, decision: Decision) -> Decision:
        """Add the kernels that run on request only to a decision."""
        kernels = self.tuner.registry.kernels(op)
        requested = [left_out(b, k).candidate for b, k in kernels if b.on_request]
        return replace(decision, candidates=(*decision.candidates, *requested))

    def _decided(self, problem: Problem, candidates: Sequence[Candidate], page: Page) -> Decision:
        owned = {b.label(k): (b, k) for b, k in self.tuner.taking_part(problem.op)}
        entries = [Contender(*owned[c.label], c) for c in candidates]
        return decided(problem, candidates, page.again, entries, before=page.decision)

    def _carried(self, problem: Problem, args: tuple[Any, ...], decision: Decision) -> Choice:
        """Plan the recorded winner, and that of captured calls if it differs."""
        choice = self._planned(problem, args, decision)
        if decision.captured is None or decision.captured.chosen == decision.chosen:
            return choice
        return replace(choice, captured=self._planned(problem, args, decision.captured))

    def _planned(self, problem: Problem, args: tuple[Any, ...], decision: Decision) -> Choice:
        """Plan the recorded winner; torch serves if it is rejected now."""
        owned = next((b, k) for b, k in self.tuner.taking_part(problem.op) if b.label(k) == decision.chosen)
        entry = self.tuner.enter(*owned, problem, args, first=False)
        if entry.call is None:
            why = f"{decision.chosen} was chosen before, but is rejected now: {entry.candidate.refusal}"
            return self.tuner.stay(problem, None, why)
        return Choice(decision, entry.call, entry.kernel, entry.backend)
