"""Query: a problem that is new to this process, what its call may do about it, and each rung's answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nxcore.choose.contenders import Choice, guess, promised
from nxcore.choose.learn.confirmation import Confirmations
from nxcore.choose.learn.learner import Learner
from nxcore.choose.learn.lesson import Decided
from nxcore.choose.prune import Pruner
from nxcore.choose.recall import Recall
from nxcore.choose.survey import Survey
from nxcore.context import Preference, Purpose
from nxcore.errors import UnsupportedProblemError
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.store.lock import Lock
from nxcore.store.pages import Page
from nxcore.store.wisdom import key as filed

LEARNING = ("auto", "measure")
"""The policies that measure."""

LATER = {
    "measure": ", which measures it at its first call, not for an explanation",
    "auto": ", which explores it beside its calls, once it comes back",
}
"""How a policy treats a new problem, as opposed to an explanation."""


@dataclass
class Query:
    """A problem that is new to this process, its call, and the parts that can answer.

    ``policy`` is what the call may do about it, ``in_force`` the policy by its name. ``serve`` is called with
    the choice where the problem is learnt; ``between`` returns that of its family.
    """

    problem: Problem
    args: tuple[Any, ...]
    backend: str | None
    order: Preference
    policy: str
    in_force: str
    serve: Decided
    between: Callable[[Problem, tuple[Any, ...]], Choice | None]
    settings: Settings
    lock: Lock
    recall: Recall
    survey: Survey
    pruner: Pruner
    confirmations: Confirmations
    learner: Learner

    @property
    def _locked_alone(self) -> bool:
        return self.policy == "frozen" and self.lock.held

    @functools.cached_property
    def _page(self) -> Page | None:
        """The figures for this device: its own, or those of the package or of an imported file."""
        wanted = not (self._locked_alone or self.problem.view)
        return self.recall.wisdom.read(self.problem) if wanted else None

    @functools.cached_property
    def _unlearnt(self) -> str:
        """Why its calls can't be learnt from; empty if they can."""
        return self.learner.refusal(self.problem) if self.policy == "auto" else ""

    def _recalled(self, *, foreign: bool) -> Choice | None:
        if self._page is None or self._page.foreign != foreign:
            return None
        how: dict[str, Any] = {"page": self._page, "at_once": self.in_force == "auto"}
        return self.recall.recall(self.problem, self.args, self.policy, **how)

    def pinned(self) -> Choice | None:
        """Return the kernel of the backends that the call names."""
        order = self.order.backends
        if self.backend is None and not order:
            return None
        return self.recall.tuner.choose(self.problem, self.args, backend=self.backend, order=order)

    def locked(self) -> Choice | None:
        """Return the kernel that the lock names."""
        label = self.lock.label(filed(self.problem)) if self.lock.chosen else ""
        strict = self.settings.strict
        return self.recall.locked(self.problem, self.args, label, strict=strict) if label else None

    def recorded(self) -> Choice | None:
        """Return the choice on record, by this machine's figures."""
        return self._recalled(foreign=False)

    def shipped(self) -> Choice | None:
        """Return the choice on record by figures of elsewhere; calls that may measure confirm it."""
        found = self._recalled(foreign=True)
        if found is None and self.in_force != "measure" and not self._locked_alone:
            found = self.recall.related(self.problem, self.args)
        confirmed = found is not None and self.policy in LEARNING
        return self.confirmations.over(found, self.problem) if found and confirmed else found

    def of_family(self) -> Choice | None:
        """Return the kernel that won the sizes around the problem."""
        if self._unlearnt or self.problem in self.survey.stays:
            return None
        return self.between(self.problem, self.args)

    def beside(self) -> Choice | None:
        """Return torch while the process beside measures, and where it found nothing to race."""
        problem, survey, tuner = self.problem, self.survey, self.recall.tuner
        if why := survey.stays.get(problem):
            return tuner.stay(problem, None, why)
        if self.policy != "measure":
            return None
        comes_back = self.order.purpose in (Purpose.CAPTURE, Purpose.FIND) and self.in_force == "auto"
        # Where no kernel accepts it there is nothing to measure, and no capture to be made again for it.
        if comes_back and survey.takes(problem) and tuner.accepting(problem) and not survey.leaves_to_call():
            survey.ask(problem)
            survey.captured.add(problem)
        if problem not in survey.captured or not survey.takes(problem):
            return None
        stays = tuner.stay(problem, None, "it is being measured beside the program")
        return promised(stays) if self.order.purpose is Purpose.FIND else guess(stays)

    def raced(self) -> Choice | None:
        """Race the kernels in this call."""
        return self.pruner.measured(self.problem, self.args)

    def explored(self) -> Choice | None:
        """Return torch until the kernels were raced in the problem's calls."""
        return None if self._unlearnt else self.learner.start(self.problem, self.serve)

    def torch(self) -> Choice:
        """Return torch's reference, and why.

        Raises
        ------
        UnsupportedProblemError
            If nothing but entries may serve, and ``NXCORE_STRICT`` is set.
        """
        if self.policy == "frozen" and self.settings.strict:
            told = f"the {'lock' if self.lock.held else 'record'} has no entry for {self.problem}"
            raise UnsupportedProblemError(self.problem.op, "frozen", [told])
        reason = f"it was never measured, and the policy is {self.in_force!r}"
        reason += f": {self._unlearnt}" if self._unlearnt else ""
        if not self.settings.measure:
            reason += ", and NXCORE_NO_MEASURE is set"
        elif self.policy == "known":
            reason += LATER.get(self.in_force, "")
        return guess(self.recall.tuner.stay(self.problem, None, reason))
