"""Chooser: the rules from a problem to a choice, applied once a problem."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose.beforehand import Beforehand
from nxcore.choose.contenders import PROBLEMS, Choice
from nxcore.choose.families import Families
from nxcore.choose.ladder import answered
from nxcore.choose.learn.confirmation import Confirmations
from nxcore.choose.learn.exploration import Exploration, exploration
from nxcore.choose.learn.learner import Learner
from nxcore.choose.learn.watch import Watch
from nxcore.choose.learn.watches import Watches
from nxcore.choose.pairs import Pairs
from nxcore.choose.prune import Pruner
from nxcore.choose.query import Query
from nxcore.choose.recall import Recall
from nxcore.choose.recorded import Recorded
from nxcore.choose.retries import Retries
from nxcore.choose.survey import FEW, Survey
from nxcore.choose.workers import Workers
from nxcore.context import NOTHING, PREFERENCE, Preference, Purpose, capturing, in_force
from nxcore.measure.busy import INCONCLUSIVE
from nxcore.settings import Settings
from nxcore.spec.kernel import Kernel, Refusal
from nxcore.spec.problem import Problem
from nxcore.spec.spec import OpSpec
from nxcore.store.lock import Lock
from nxcore.store.wisdom import key as filed

_log = logging.getLogger(__name__)

NOW = (Purpose.DECIDE, Purpose.CAPTURE, Purpose.FIND)
"""The purposes for which a new problem is measured under ``auto`` too."""

WAITING = NOTHING._replace(purpose=Purpose.WAIT)

Key = tuple[Any, ...]


class Chooser:
    """Chooses the kernel of a problem: pinned, preferred, locked, known, learnt, measured, or torch's.

    Parameters
    ----------
    settings : Settings
        The policy, the lock and the strictness.
    recall : Recall
        Finds recorded decisions; its tuner measures new problems.
    changed : callable
        Called when a choice in use has changed, so that its plans must be dropped.
    surveyor : Workers, optional
        The worker that measures problems beside the program.

    Attributes
    ----------
    waits : bool
        Whether any choice may wait until a call comes back; False once a CUDA context is lost.
    """

    def __init__(
        self,
        settings: Settings,
        recall: Recall,
        changed: Callable[[], None],
        *,
        surveyor: Workers | None = None,
    ) -> None:
        self.settings, self.recall, self.tuner = settings, recall, recall.tuner
        self.watches = Watches(self._convicted, lambda: self.learner.pace, on=settings.audit)
        self.survey = Survey(surveyor, changed)
        self.learner = Learner(recall, changed, family=self.between, survey=self.survey)
        self.survey.keep_to(lambda: self.learner.pace)
        self.lock = Lock.set_by(settings.lock, strict=settings.strict)
        self.families, self.pairs = Families(recall), Pairs(recall, self.lock)
        self.pruner, recall.pruned = Pruner(self.families), self._pruned
        self.confirmations = Confirmations(lambda: self.learner, self._contradicted)
        self.recorded, self.beforehand = Recorded(recall.wisdom, self.tuner.registry), Beforehand(recall)
        self.choices: OrderedDict[Key, Choice] = OrderedDict()
        self._changed, self.waits, self._made = changed, True, 0
        self.retries = Retries(self._drop)
        self.pairs.repeat = self.retries.add
        self._threads = threading.RLock()

    @property
    def made(self) -> int:
        """How many choices were made so far, of problems and of pairs; explorations and guesses left out."""
        return self._made + self.pairs.made

    @property
    def policy(self) -> str:
        """The policy of the call's context; ``known`` where it applies to nothing unknown."""
        order, found = PREFERENCE.get(), self.in_force
        if order.purpose is Purpose.SHOW or not self.settings.measure:
            return found if found == "frozen" else "known"
        return "measure" if found == "auto" and order.purpose in NOW else found

    @property
    def in_force(self) -> str:
        """The policy's name, whether or not an explanation applies it."""
        return PREFERENCE.get().policy or self.settings.policy

    @property
    def _locked_alone(self) -> bool:
        """Whether the lock alone decides."""
        return self.policy == "frozen" and self.lock.held

    @staticmethod
    def explaining(*, decide: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of an explanation, which needs a decision now or none at all."""
        return in_force(purpose=Purpose.DECIDE if decide else Purpose.SHOW)

    def choose(self, problem: Problem, args: tuple[Any, ...], backend: str | None = None) -> Choice:
        """Return the choice for ``problem``, in the present context.

        Parameters
        ----------
        problem : Problem
            The call without its data.
        args : tuple
            The call's arguments, all positional, already checked.
        backend : str, optional
            This backend must serve the call; otherwise an error is raised.

        Raises
        ------
        UnknownBackendError, BackendUnavailableError, UnsupportedProblemError
            If ``backend``, or the kernel of the lock under ``NXCORE_STRICT``, can't serve the call.
        DeviceLostError
            If a kernel ended the CUDA context.
        """
        key = self._key(problem, backend)
        with self._threads:  # several threads with the same new problem measure it once
            before = self.choices.get(key)  # hashing a key is slow
            if before is not None and enough(before, self.policy):
                self.choices.move_to_end(key)
                return before
            if reason := torch_alone(problem) or self._later(problem, backend):
                return self.tuner.stay(problem, backend, reason)
            choice = self.choices[key] = self._decide(key, problem, args, backend)
            self._note(problem, choice)
            _log.info("choice: %s -> %s, %s: %s", problem, *_told(choice))
            # Plans were dropped when the last problem had been measured beside the program.
            told = problem in self.survey.captured
            if before and before.decision.rule != choice.decision.rule and not told:
                self._changed()
            if len(self.choices) > PROBLEMS:
                self.choices.popitem(last=False)
            return choice

    def postpones(
        self, order: Preference, spec: OpSpec, args: tuple[Any, ...]
    ) -> tuple[Mapping[Any, None], ...] | None:
        """Return the shapes on record if the choice for a new call may wait until it comes back, else None.

        Torch serves it until then. Only calls that nothing is known of may wait, and only to be learnt from:
        a lock, a preference, a recording or another policy applies from the first call on.
        """
        if order is not NOTHING and order._replace(policy="") not in (NOTHING, WAITING):
            return None
        if (order.policy or self.settings.policy) != "auto" or not self.waits or self.lock.chosen:
            return None
        return None if self.recorded.holds(spec, args) else self.recorded.tables(spec)

    def expect(self, like: torch.Tensor) -> None:
        """Prepare for a network that is called with a tensor like this one, and captured after."""
        if self.recall.wisdom.has(like.device) and not self._locked_alone:
            self.beforehand.begin(like)
        elif self.policy == "auto":
            self.survey.prepare(like.device)

    def leave_to_calls(self, device: torch.device, *, first: bool) -> None:
        """Have the first run for a capture measure a few problems itself where the device is known.

        The process that measures isn't started for them. Later runs find it at work beside them.
        """
        self.survey.left_to_calls = FEW if first and self.recall.wisdom.has(device) else 0

    def known(self, problem: Problem, backend: str | None = None) -> Choice | None:
        """Return the choice that was made in this process, None if there is none."""
        return self.choices.get(self._key(problem, backend))

    def stays(self, problem: Problem) -> bool:
        """Return whether torch will serve ``problem``: it is unknown, and the policy learns nothing.

        No call is needed to find out.
        """
        policy = self.policy
        if PREFERENCE.get().backends or policy not in ("known", "frozen") or self.known(problem):
            return False
        if self.lock.chosen and self.lock.label(filed(problem)):
            return False
        if policy == "frozen" and self.settings.strict:
            return False
        return self._locked_alone or self.recall.wisdom.known(problem) is None

    def keep(self, problem: Problem, backend: str | None, choice: Choice) -> None:
        """Use ``choice`` for ``problem`` from now on."""
        with self._threads:
            self.choices[self._key(problem, backend)] = choice
            self._note(problem, choice)

    def hold(self, lock: Lock, settings: Settings) -> None:
        """Use another lock and other settings; drop all choices."""
        with self._threads:
            self.lock, self.settings = lock, settings
            self.pairs.hold(lock)
            self.choices.clear()

    def forget(self, kernel: Kernel) -> None:
        """Drop every choice of ``kernel``."""
        with self._threads:
            for key in [k for k, c in self.choices.items() if c.falls_on(kernel)]:
                del self.choices[key]

    def _convicted(self, watch: Watch, reason: str) -> None:
        """Put a kernel that a watch found wrong into quarantine, and drop its plans."""
        gate, problem = self.tuner.gate, watch.problem
        suspect = gate.suspect(watch.backend, watch.kernel, problem.device, problem.dtype)
        gate.quarantine.add(suspect, "wrong", reason)
        self.forget(watch.kernel)
        self._changed()

    def _contradicted(self, problem: Problem, why: str) -> None:
        """Have a problem learnt anew, since figures of elsewhere are wrong here."""
        _log.warning("confirmation: %s: %s, other than on record; it is learnt anew", problem, why)
        self.recall.wisdom.contradict(problem)
        self._drop((problem,))

    def _drop(self, problems: Collection[Problem]) -> None:
        """Have problems chosen anew."""
        with self._threads:
            for key in [key for key in self.choices if key[0] in problems]:
                del self.choices[key]
        self._changed()

    def after_fork(self) -> None:
        """Create new locks in a forked child, and restart the explorations.

        Another thread may have held the locks at the fork, and the learning thread doesn't exist in the
        child.
        """
        self._threads = threading.RLock()
        self.learner.after_fork()
        for part in (self.watches, self.survey, self.retries):
            part.after_fork()
        for key in [k for k, c in self.choices.items() if c.decision.rule == "exploring"]:
            del self.choices[key]
        self._changed()

    def _key(self, problem: Problem, backend: str | None) -> Key:
        return (
            problem,
            backend,
            PREFERENCE.get().backends,
            self._locked_alone,
            torch.are_deterministic_algorithms_enabled(),
        )

    def _later(self, problem: Problem, backend: str | None) -> str:
        """Return why torch serves a problem until a capture chooses for its calls; empty where it doesn't.

        An unknown problem is learnt until then, where a policy learns it beside the calls.
        """
        order, policy = PREFERENCE.get(), self.policy
        if (
            order.purpose is not Purpose.WAIT
            or order.backends
            or backend
            or self.lock.chosen
            or self._locked_alone
        ):
            return ""
        if policy != "measure" and not self.survey.takes(problem):
            page = self.recall.wisdom.read(problem)
            if page is None:
                return ""
        return "torch serves it until a replay takes the place of its calls"

    def _decide(self, key: Key, problem: Problem, args: tuple[Any, ...], backend: str | None) -> Choice:
        """Go down the ladder for a problem that is new to this process."""
        query = Query(
            problem,
            args,
            backend,
            PREFERENCE.get(),
            self.policy,
            self.in_force,
            functools.partial(self._learnt, key, self.lock),
            self.between,
            self.settings,
            self.lock,
            self.recall,
            self.survey,
            self.pruner,
            self.confirmations,
            self.learner,
        )
        return answered(query)

    def between(self, problem: Problem, args: tuple[Any, ...] | None = None) -> Choice | None:
        """Return the choice of its family for a problem between two measured ones; None if it has none.

        A problem with figures of its own is learnt if they don't count.
        """
        if self.recall.wisdom.holds(problem) or not (found := self.families.between(problem, args)):
            return None
        return self.confirmations.over(found, problem)

    def explorations(self) -> list[Exploration]:
        """Return the explorations of this process, those that are over included."""
        # An OrderedDict hashes each key again where it yields values: a millisecond for a network.
        found = (exploration(choice.call) for choice in list(dict.values(self.choices)))
        return [e for e in found if e is not None]

    def _pruned(self, problem: Problem) -> dict[str, Refusal]:
        """Return the refusals of kernels that aren't worth compiling; have the others compiled."""
        listed = self.pruner.shortlist(problem)
        self.pruner.compile(problem, listed)
        return {**listed.pruned, **{n: listed.refusal(n) for n in listed.order[listed.most :]}}

    def promising(self, problem: Problem) -> tuple[str, ...]:
        """Return the kernels that are worth a compiler's seconds: the winner on record, if there is one."""
        page = self.recall.wisdom.known(problem)
        return (page.decision.chosen,) if page else self.pruner.shortlist(problem).first

    def _learnt(self, key: Key, lock: Lock, choice: Choice) -> None:
        """Keep the result of an exploration, unless another choice was made or ranks agreed until then."""
        with self._threads:
            if self.lock is lock and key in self.choices and self.choices[key].decision.rule == "exploring":
                choice = self.choices[key] = replace(choice, rung=self.choices[key].rung)
                self._note(key[0], choice)
                _log.info("choice: %s -> %s, %s: %s", key[0], *_told(choice))

    def _note(self, problem: Problem, choice: Choice) -> None:
        if choice.decision.rule not in ("exploring", "prior", INCONCLUSIVE):
            self.recorded.add(problem)
            self._made += 1
        self.retries.note(problem, choice)


def torch_alone(problem: Problem) -> str:
    """Return why only torch can serve ``problem`` now; empty if any kernel can."""
    if capturing(problem):
        return "a CUDA graph is being captured and this problem is new: call it once before the capture"
    gradient = problem.spec.gradient
    if problem.needs_grad and (gradient is None or not gradient.covers(*problem.args)):
        return "a gradient is needed, and only torch's autograd computes it"
    return ""


def enough(choice: Choice, policy: str) -> bool:
    """Return whether a choice is sufficient under a policy."""
    unmeasured = {"measure": ("exploring", "family", "prior"), "auto": ("prior",), "frozen": ("exploring",)}
    return choice.decision.rule not in unmeasured.get(policy, ())


def _told(choice: Choice) -> tuple[str, str, str]:
    """Return what a line of the log says of a choice: kernel, rule and reason."""
    return choice.decision.chosen, choice.decision.rule, choice.decision.reason
