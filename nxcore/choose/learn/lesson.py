"""Lesson: the exploration of one problem, from its first calls until its choice is made."""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from nxcore.choose.ahead import announce, steps, with_code
from nxcore.choose.contenders import (
    AGAIN,
    Choice,
    Contender,
    carry_out,
    check_result,
    decided,
    leaves_of,
    settles,
    timed,
    uncontested,
    unmeasured,
    yardstick,
)
from nxcore.choose.learn.exploration import PIECE_S, UNSERVED, Exploration, Piece
from nxcore.choose.learn.watch import Watch
from nxcore.choose.process import Answer
from nxcore.choose.workers import BESIDE, SEVERAL, Workers
from nxcore.context import KernelWarning
from nxcore.errors import FOREIGN, DeviceLostError, VerificationError, present
from nxcore.measure.decision import Candidate, Decision
from nxcore.measure.race import Race
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.device import heed_no_capture
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem
from nxcore.trust.gate import brief, lost, pausing

if TYPE_CHECKING:
    from nxcore.choose.learn.learner import Learner

_log = logging.getLogger(__name__)

Decided = Callable[[Choice], None]

KNOWN_S, VERIFIED_S, TOOLKIT_S, UNKNOWN_S, LOOK_S = 0.05, 0.3, 0.25, 2.0, 0.01
"""Seconds allowed for a verified kernel on disk, for one that must be verified, for its toolkit's import, for
a step of a kernel that must be compiled, and for a look at the times."""

HOPELESS = 10.0
"""A candidate leaves a race if its second call takes so many times torch's, or its first the square."""

SINGLE = ((1e-3, 5),)
"""The samples of a block on the CPU: one of calls from a millisecond on, whose result is the caller's."""


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
        self._firsts: list[Contender] = []  # those that haven't run yet
        self._audited: dict[str, Callable[..., Any]] = {}  # plans whose first run was audited
        self._watched: dict[str, Watch] = {}
        self._race: Race | None = None
        self._unmeasured = ""
        self.exploration = Exploration(
            problem.spec.reference,
            problem.device,
            wanted=lambda: learner.preparing.add(self._prepare, self.exploration.heat.share),
            look=lambda: learner.judging.add(self._judge),
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
        found = self._learner.recall.recall(self._problem, (), "known")
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
        began = time.monotonic()

        def stage() -> str:
            waits = f"{len(tasks) - left} of {len(tasks)} tasks of its kernels' compilers are done"
            return f"{waits}, {time.monotonic() - began:.0f} s after the request"

        self.exploration.stage = stage

        def answered(label: str, answer: Answer) -> None:
            nonlocal left
            learner.pace.charge(BESIDE * answer.seconds)
            if answer.why:
                _log.warning("compile: %s for %s: %s", label, self._problem, answer.why)
                self._made.discard(label)
            left -= 1
            if not left:
                self._quiet()
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
        """Race the kernels in the problem's calls, if there are at least two."""
        self._entries = entries
        if sum(e.races for e in entries) < 2:
            self._finish(self._stay())
            return
        self._firsts = [e for e in entries if e.races and not e.candidate.native]
        self.exploration.stage = self._progress
        self._learner.pace.rest(0.0)
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

    def _stay(self) -> Choice:
        """Return torch's reference where nothing was raced."""
        why = self._unmeasured or uncontested(self._problem, self._entries)
        decision = Decision("torch", "reference", why, tuple(e.candidate for e in self._entries))
        backend, kernel = self._tuner.taking_part(self._problem.op)[0]
        return Choice(decision, self._problem.spec.reference, kernel, backend)

    def _progress(self) -> str:
        """Return how far the race is, as words."""
        of = self._tuner.effort.looks[-1]
        done = self._race.done if self._race else 0
        return f"{done} of at most {of} rounds are complete"

    def _piece(self, args: tuple[Any, ...]) -> Piece:
        """Race a piece on a call's arguments: the first runs, then steps for a while."""
        ends = time.monotonic() + PIECE_S
        if not self._quiet():
            return Piece(over=False)
        try:
            with torch.no_grad():
                while self._firsts:
                    self._first(self._firsts.pop(), args)
                    if time.monotonic() >= ends:
                        return Piece(over=False)
                race = self._race = self._race or self._prepared()
                if race is None:
                    return Piece(over=True)
                over = race.go(*args, seconds=max(0.0, ends - time.monotonic()))
        except Exception as error:
            if reason := lost(self._problem.device):
                first, *rest = (e.candidate.label for e in self._entries if e.races)
                op = self._problem.op
                raise DeviceLostError(reason, op=op, kernel=first, sure=False, before=rest) from error
            self._unmeasured = unmeasured(error)
            return Piece(over=True)
        return Piece(over, self._served(race, args), race.own_s)

    def _prepared(self) -> Race | None:
        """Return the race of all that can serve; None if that is one."""
        racing = [e for e in self._entries if e.races]
        if len(racing) < 2:
            return None
        effort = replace(self._tuner.effort, samples=SINGLE, hopeless=HOPELESS)
        return Race(
            {e.candidate.label: present(e.call, "entry.call") for e in racing},
            self._problem.device,
            rivals=frozenset(e.candidate.label for e in racing if e.candidate.native),
            again=AGAIN,
            settled=settles(self._problem, [e.candidate for e in self._entries], effort),
            effort=effort,
            clock=self._learner.clock,
            failed=self._failed,
            cost=self._problem.cost,
        )

    def _served(self, race: Race, args: tuple[Any, ...]) -> Any:
        """Return the result of the last step if it can be the caller's."""
        if (last := race.taken()) is None:
            return UNSERVED
        label, result = last
        entry = next(e for e in self._entries if e.candidate.label == label)
        if yardstick(entry.kernel) or entry.candidate.refusal:
            return UNSERVED
        watch = self._watched.get(label)
        try:
            return watch.look(args, result) if watch else result
        except VerificationError as error:
            self._failed(label, error)
            return UNSERVED

    def _judge(self) -> None:
        """Choose by the timings."""
        self._learner.pace.rest(LOOK_S)
        for i, e in enumerate(self._entries):  # a kernel may have been convicted in calls of another problem
            if not e.candidate.refusal and (
                why := self._tuner.gate.refusal(e.backend, e.kernel, self._problem)
            ):
                self._entries[i] = replace(e, candidate=replace(e.candidate, refusal=why), call=None)
        if self._race is None or self._unmeasured:
            self._finish(self._stay())
            return
        timings = self._race.timings
        candidates, again = timed([e.candidate for e in self._entries], timings), timings.get(AGAIN)
        before = self._learner.recall.before(self._problem)
        decision = decided(self._problem, candidates, again, self._entries, before=before)
        choice = replace(carry_out(decision, self._entries), again=again)
        self._race = None
        self._finish(self._learner.recall.kept(self._problem, (), choice, "auto"))

    def _rest(self) -> None:
        """Continue to race once the budget allows it."""
        self._learner.pace.rest(0.0)
        self.exploration.resume()

    def _failed(self, label: str, error: Exception) -> None:
        """Leave out a kernel that raised, or whose result is wrong."""
        at = next(i for i, e in enumerate(self._entries) if e.candidate.label == label)
        suspect = self._entries[at].backend, self._entries[at].kernel, self._problem
        # A convicted kernel is in quarantine already: that exception is no strike.
        reason = self._tuner.gate.refusal(*suspect) or self._tuner.failed(*suspect, error)
        self._entries[at] = replace(
            self._entries[at], candidate=replace(self._entries[at].candidate, refusal=reason), call=None
        )
        warnings.warn(
            f"{label}, a kernel of {self._problem.op!r}, raised {brief(error)}; it is left out",
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

    def _first(self, entry: Contender, args: tuple[Any, ...]) -> None:
        """Run a kernel for the first time: recorded in the journal, synchronized, and audited."""
        problem, watches, label = self._problem, self._learner.watches, entry.candidate.label
        call = present(entry.call, "entry.call")
        suspect = self._tuner.gate.suspect(entry.backend, entry.kernel, problem.device, problem.dtype)
        watch = watches.watch(entry.backend, entry.kernel, call, problem) if watches.on else None
        try:
            with self._tuner.gate.watched(suspect, problem.device, f"its first run on {problem}", problem):
                check_result(watch.inspected(args, audit=True) if watch else call(*args), problem, args)
        except DeviceLostError:
            raise
        except FOREIGN as error:
            self._failed(label, error)
            return
        if watch:
            self._audited[label], self._watched[label] = call, watch
