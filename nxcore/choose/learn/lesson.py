"""Lesson: the exploration of one problem, from its first calls until its choice is made."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nxcore.choose.ahead import announce, steps, with_code
from nxcore.choose.contenders import (
    AGAIN,
    Choice,
    Contender,
    carry_out,
    check_result,
    decided,
    leaves_of,
    timed,
    yardstick,
)
from nxcore.choose.learn.exploration import Check, Exploration
from nxcore.choose.process import Answer
from nxcore.choose.workers import BESIDE, SEVERAL, Workers
from nxcore.context import KernelWarning
from nxcore.errors import present
from nxcore.measure.decision import Candidate, Decision, settled
from nxcore.measure.timing import Timing
from nxcore.spec import tally
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.device import heed_no_capture
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.problem import Problem
from nxcore.store.problems import arguments
from nxcore.trust.gate import brief, pausing

if TYPE_CHECKING:
    from nxcore.choose.learn.learner import Learner

_log = logging.getLogger(__name__)

Decided = Callable[[Choice], None]

KNOWN_S, VERIFIED_S, TOOLKIT_S, UNKNOWN_S, LOOK_S = 0.05, 0.3, 0.25, 2.0, 0.01
"""Seconds allowed for a verified kernel on disk, for one that must be verified, for its toolkit's import, for
a step of a kernel that must be compiled, and for a look at the times."""

NO_TURNS = Refusal(Code.POLICY, "takes no turns: it returns another result than the operator")

RACE_S = 0.5
"""Seconds allowed for a race in the background."""


class Lesson:
    """The exploration of one problem, until its choice is made.

    Parameters
    ----------
    learner : Learner
        Runs the exploration's work in the background.
    problem : Problem
        The problem of the calls.
    serve : callable
        Called with the choice.

    Attributes
    ----------
    exploration : Exploration
        The call that takes turns.
    """

    def __init__(self, learner: Learner, problem: Problem, serve: Decided) -> None:
        self._learner, self._tuner, self._problem, self._serve = learner, learner.tuner, problem, serve
        self._entries: list[Contender] = []
        self._made: set[str] = set()
        self._audited: dict[str, Callable[..., Any]] = {}  # plans whose first turn was audited
        self.exploration = Exploration(
            problem.spec.reference,
            problem.device,
            wanted=lambda: learner.preparing.add(self._prepare, self.exploration.heat.share),
            look=lambda timings, last: learner.judging.add(lambda: self._judge(timings, last)),
            failed=self._failed,
            pace=learner.pace,
            rests=lambda: learner.judging.add(self._rest),
            clock=learner.clock,
        )

    def _prepare(self) -> None:
        """Prepare the kernels that are on disk, and have the others compiled."""
        if self._problem.device.type == "cuda":
            heed_no_capture()
        if found := self._learner.family(self._problem):  # sizes around it were learnt meanwhile
            self._finish(found)
            return
        if self._learner.survey.takes(self._problem) and self._tuner.accepting(self._problem):
            self._learner.survey.ask(self._problem, self._surveyed, self.exploration.heat.share)
            return
        empty = any(m.numel() == 0 for m in leaves_of(self._problem.outputs))
        taking = [] if empty else self._tuner.taking_part(self._problem.op)
        ready = [self._from_disk(backend, kernel) for backend, kernel in taking]
        missing = [of for of, found in zip(taking, ready, strict=True) if not found]
        tasks = [
            (backend.label(kernel), step)
            for backend, kernel in missing
            for step in steps(self._tuner, backend, kernel, self._problem)
        ]
        if tasks and self._workers:
            self._await(self._workers, tasks)
            return
        self._begin([found or self._compiled(*of) for of, found in zip(taking, ready, strict=True)])

    def _surveyed(self, why: str) -> None:
        """Go on after the problem was measured beside the program: here, if it couldn't be."""
        self._learner.preparing.add(self._prepare if why else self._recall, self.exploration.heat.share)

    def _recall(self) -> None:
        """Take the decision that was made beside the program."""
        stays = self._learner.survey.stays.get(self._problem, "what was measured can't be read")
        self._learner.recall.wisdom.store.refresh()
        found = self._learner.recall.recall(self._problem, (), "estimate")
        self._finish(found or self._tuner.stay(self._problem, None, stays))

    @property
    def _workers(self) -> Workers | None:
        """The workers that compile for the problem's device; None if there are none.

        For a GPU several are needed: a toolkit's import and a sample each would take one too long.
        """
        workers = self._tuner.workers
        least = 1 if self._problem.device.type == "cpu" else SEVERAL
        return workers if workers and workers.most >= least else None

    def _await(self, workers: Workers, tasks: list[tuple[str, str]]) -> None:
        """Have kernels, for the problem or samples, compiled by workers; go on once all have answered."""
        learner, heat = self._learner, self.exploration.heat.share
        left, self._made = len(tasks), {label for label, _ in tasks}

        def answered(label: str, answer: Answer) -> None:
            nonlocal left
            learner.pace.charge(BESIDE * answer.seconds)
            if answer.why:
                _log.warning("compile: %s for %s: %s", label, self._problem, answer.why)
                self._made.discard(label)
            left -= 1
            if not left:
                learner.preparing.add(self._enter, heat)
            learner.compiling -= 1

        learner.compiling += left
        announce(self._problem.op, left, workers.most)
        for label, step in tasks:
            told = functools.partial(answered, label)
            workers.ask(self._problem, label, told, heat, step)

    def _enter(self) -> None:
        """Prepare the kernels after workers have answered: what they left on disk, and the others here."""
        self._tuner.gate.quarantine.read()  # a kernel that ended a worker would end the program
        taking = self._tuner.taking_part(self._problem.op)
        self._begin([self._from_disk(*of) or self._compiled(*of) for of in taking])

    def _begin(self, entries: list[Contender]) -> None:
        """Let the kernels take turns, if there are at least two."""
        self._entries = entries
        racing = [e for e in self._entries if e.races]
        if len(racing) < 2:
            why = "no kernel of another backend can run this call"
            decision = Decision("torch", "reference", why, tuple(e.candidate for e in self._entries))
            backend, kernel = self._tuner.taking_part(self._problem.op)[0]
            self._finish(Choice(decision, self._problem.spec.reference, kernel, backend))
            return
        if self.exploration.apart:
            self._race()
            return
        calls, checks = {}, {}
        for e in racing:
            calls[e.candidate.label], checks[e.candidate.label] = self._careful(e)
        native = (e.candidate.label for e in racing if e.candidate.native)
        tally.raced()
        self.exploration.begin(calls, frozenset(native), AGAIN, checks)

    def _race(self) -> None:
        """Race the kernels, on arguments of their own."""
        self._learner.pace.rest(RACE_S)
        args = arguments(self._problem)
        before = self._learner.recall.before(self._problem)
        decision, again = self._tuner.measured(self._problem, args, self._entries, before)
        choice = replace(carry_out(decision, self._entries), again=again)
        self._finish(self._learner.recall.kept(self._problem, args, choice, "online"))

    def _judge(self, timings: Mapping[str, Timing], last: bool) -> None:
        """Judge the timings: continue to take turns, or choose."""
        self._learner.pace.rest(LOOK_S)
        for i, e in enumerate(self._entries):  # a kernel may have been convicted in calls of another problem
            if not e.candidate.refusal and (
                why := self._tuner.gate.refusal(e.backend, e.kernel, self._problem)
            ):
                self._entries[i] = replace(e, candidate=replace(e.candidate, refusal=why), call=None)
        candidates, again = timed([e.candidate for e in self._entries], timings), timings.get(AGAIN)
        if not (last or settled(candidates, again)):
            self.exploration.resume()
            return
        before = self._learner.recall.before(self._problem)
        decision = decided(self._problem, candidates, again, self._entries, learnt=True, before=before)
        choice = replace(carry_out(decision, self._entries), again=again)
        self._finish(self._learner.recall.kept(self._problem, (), choice, "online"))

    def _rest(self) -> None:
        """Continue to take turns once the budget allows it."""
        self._learner.pace.rest(0.0)
        self.exploration.resume()

    def _failed(self, label: str, error: Exception) -> None:
        """Drop a kernel that raised in its turn."""
        at = next(i for i, e in enumerate(self._entries) if e.candidate.label == label)
        suspect = self._entries[at].backend, self._entries[at].kernel, self._problem
        # A convicted kernel is in quarantine already: that exception is no strike.
        reason = self._tuner.gate.refusal(*suspect) or self._tuner.failed(*suspect, error)
        self._entries[at] = replace(
            self._entries[at], candidate=replace(self._entries[at].candidate, refusal=reason), call=None
        )
        warnings.warn(
            f"{label}, a kernel of {self._problem.op!r}, raised {brief(error)}; it takes no more turns",
            KernelWarning,
            stacklevel=6,
        )

    def _finish(self, choice: Choice) -> None:
        """Let a choice serve all further calls."""
        self._serve(choice)
        passed = self._audited.get(choice.decision.chosen) is choice.call
        watched = self._learner.watches.over(replace(choice, captured=None), self._problem, int(passed))
        self.exploration.end(self._learner.wrap(watched, self._problem))
        self._learner.undone = True

    def _from_disk(self, backend: Backend, kernel: Kernel) -> Contender | None:
        """Check, verify and plan a kernel if nothing must be compiled for it; None if something must be."""
        candidate = Candidate(backend.label(kernel), backend.name)
        if yardstick(kernel) and not self.exploration.apart:
            return Contender(backend, kernel, replace(candidate, refusal=NO_TURNS))
        if self._tuner.registry.probe(backend, kernel).simulated:
            return Contender(backend, kernel, replace(candidate, simulated=True))
        own = backend.name == "torch"
        if not self._tuner.refusal(backend, kernel, self._problem):
            known = own or self._tuner.gate.knows(backend, kernel, self._problem)
            if not known and (self._workers or not kernel.announces):
                return None
            first = not (own or backend.name in self._learner.loaded)
            self._learner.pace.rest((KNOWN_S if known else VERIFIED_S) + TOOLKIT_S * first)
            self._learner.loaded.add(backend.name)
        try:
            with on_disk_alone():
                return with_code(
                    self._tuner.enter(backend, kernel, self._problem, (), first=False), self._problem
                )
        except UncompiledError:
            return None

    def _compiled(self, backend: Backend, kernel: Kernel) -> Contender:
        """Compile, verify and plan a kernel, with rests in between: short ones if workers compiled it."""
        made = self._problem.device.type == "cuda" and backend.label(kernel) in self._made
        self._learner.pace.rest(VERIFIED_S if made else UNKNOWN_S)
        self._learner.loaded.add(backend.name)
        with pausing(lambda: self._learner.pace.rest(KNOWN_S if made else UNKNOWN_S)):
            return self._tuner.enter(backend, kernel, self._problem, (), first=False)

    def _careful(self, entry: Contender) -> tuple[Callable[..., Any], Check]:
        """Return a kernel's call for its turns, and the check of their results after they are timed.

        Its first run is recorded in the journal, synchronized, and audited.
        """
        call = present(entry.call, "entry.call")
        if entry.candidate.native:
            return call, _as_it_is
        problem, watches, first = self._problem, self._learner.watches, True  # until its result was looked at
        suspect = self._tuner.gate.suspect(entry.backend, entry.kernel, problem.device, problem.dtype)
        watch = watches.watch(entry.backend, entry.kernel, call, problem) if watches.on else None

        def run(*args: Any) -> Any:
            if not first:
                return call(*args)
            with self._tuner.gate.watched(suspect, problem.device, f"its first run on {problem}", problem):
                result = watch.inspected(args, audit=True) if watch else call(*args)
                check_result(result, problem)
            if watch:
                self._audited[entry.candidate.label] = call
            return result

        def look(args: tuple[Any, ...], result: Any) -> Any:
            nonlocal first
            if first or not watch:  # inspected: a second look would find the memory that the first one noted
                first = False
                return result
            return watch.look(args, result)

        return run, look


def _as_it_is(_args: tuple[Any, ...], result: Any) -> Any:
    return result
