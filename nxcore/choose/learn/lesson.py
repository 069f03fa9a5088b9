"""Lesson: the exploration of one problem, from its first calls until its choice is made."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nxcore.choose.ahead import Tasks, announce, pays, tasks, uncompiled, without_code
from nxcore.choose.contenders import Choice, leaves_of, uncontested
from nxcore.choose.contest import Contest
from nxcore.choose.learn.exploration import CALL_S, Exploration
from nxcore.choose.process import Answer
from nxcore.choose.workers import BESIDE, Workers
from nxcore.spec.device import heed_no_capture
from nxcore.spec.planning import planning
from nxcore.spec.problem import Problem
from nxcore.store.problems import arguments

if TYPE_CHECKING:
    from nxcore.choose.learn.learner import Learner

_log = logging.getLogger(__name__)

Decided = Callable[[Choice], None]

UNKNOWN_S = 2.0
"""Seconds that a budget must have for a step of a kernel that no worker compiles."""

HOPELESS = 10.0
"""A candidate leaves a race if its second call takes so many times torch's, or its first the square."""


class Lesson:
    """The exploration of one problem, until its choice is made: then ``serve`` is called with it."""

    def __init__(self, learner: Learner, problem: Problem, serve: Decided) -> None:
        self._learner, self._tuner, self._problem, self._serve = learner, learner.tuner, problem, serve
        self._contest: Contest | None = None
        self.exploration = Exploration(
            problem.spec.reference,
            problem.device,
            wanted=lambda: self._later(self._prepare),
            pace=learner.pace,
            clock=learner.clock,
        )

    def _later(self, job: Callable[[], None]) -> None:
        self._learner.preparing.add(job, self.exploration.heat.share)

    def _prepare(self) -> None:
        """Have kernels compiled that aren't on disk; or have all of it done elsewhere."""
        problem, tuner, survey = self._problem, self._tuner, self._learner.survey
        if problem.device.type == "cuda":
            heed_no_capture()
        if found := self._learner.family(problem):  # sizes around it were learnt meanwhile
            self._finish(found)
            return
        if survey.takes(problem) and tuner.accepting(problem):
            survey.ask(problem, self._surveyed, self.exploration.heat.share)
            return
        if not all(m.numel() for m in leaves_of(problem.outputs)):
            self._finish(tuner.stay(problem, None, uncontested(problem, ())))
            return
        lacking = without_code(tuner, problem, uncompiled(tuner, problem))
        wanted = tasks(tuner, problem, lacking)
        if wanted and self._workers:
            self._await(self._workers, wanted)
        else:
            self._enter(UNKNOWN_S if lacking else 0.0)

    def _surveyed(self, why: str) -> None:
        """Go on after the problem was measured beside the program: here, if it couldn't be."""
        self._later(self._prepare if why else self._recall)

    def _recall(self) -> None:
        """Take the decision that was made beside the program."""
        stays = self._learner.survey.stays.get(self._problem, "what was measured can't be read")
        self._learner.recall.wisdom.store.refresh()
        found = self._learner.recall.recall(self._problem, (), "known")
        self._finish(found or self._tuner.stay(self._problem, None, stays))

    @property
    def _workers(self) -> Workers | None:
        """The workers that compile for the problem's device; None if there are none.

        For a GPU several are needed: a toolkit's import and a sample each would take one too long.
        """
        workers = self._tuner.workers
        return workers if self._problem.device.type == "cpu" or pays(self._tuner) else None

    def _await(self, workers: Workers, wanted: Tasks) -> None:
        """Have kernels, for the problem or samples, compiled by workers; go on once all have answered."""
        learner, began, left = self._learner, time.monotonic(), len(wanted)

        def stage() -> str:
            waits = f"{len(wanted) - left} of {len(wanted)} tasks of its kernels' compilers are done"
            return f"{waits}, {time.monotonic() - began:.0f} s after the request"

        def answered(label: str, answer: Answer) -> None:
            nonlocal left
            learner.pace.charge(BESIDE * answer.seconds)
            if answer.why:
                _log.warning("compile: %s for %s: %s", label, self._problem, answer.why)
            left -= 1
            if not left:
                self._quiet()
                self._later(self._enter)
            learner.compiling -= 1

        self.exploration.stage = stage
        learner.compiling += left
        announce(self._problem.op, left, workers.most)
        for problem, label, step in wanted.values():
            told = functools.partial(answered, label)
            workers.ask(problem, label, told, self.exploration.heat.share, step)

    def _enter(self, ahead: float = 0.0) -> None:
        """Verify and plan the kernels, each step once it is within the budget, and begin to race them."""
        problem, pace = self._problem, self._learner.pace
        self._tuner.gate.quarantine.read()  # a kernel that ended a worker would end the program
        pace.rest(ahead)
        args = arguments(problem)
        with planning(pause=lambda: pace.rest(ahead)):
            entries = self._tuner.entered(problem, args, self._tuner.candidacies(problem))
        before = self._learner.recall.before(problem)
        effort = replace(self._tuner.effort, hopeless=HOPELESS)
        contest = self._contest = Contest(self._tuner.gate, effort, problem, args, entries, before)
        if contest.reason:
            self._finish(contest.choice)
            return
        self.exploration.stage = lambda: contest.progress
        self._quiet()
        self.exploration.begin(self._piece)

    def _quiet(self) -> bool:
        """Have workers begin nothing for a while, where they would take the race's processors.

        Return whether none is at work.
        """
        if self._problem.device.type != "cpu":
            return True
        self._learner.raced = time.monotonic()
        return not (self._workers and self._workers.busy)

    def _piece(self) -> None:
        """Race for as long as a call bears, and choose after the last piece."""
        contest = self._contest
        if contest and self._quiet() and contest.go(CALL_S, self._learner.clock):
            self._finish(self._learner.recall.kept(self._problem, (), contest.choice, "auto"))

    def _finish(self, choice: Choice) -> None:
        """Let a choice serve all further calls."""
        self._contest = None
        self._serve(choice)
        self.exploration.end()
        self._learner.finished()
