"""Online: a new problem's kernels are prepared in the background, and its calls determine the winner."""

from __future__ import annotations

import functools
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose.ahead import SEVERAL, announce, steps, with_code
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
from nxcore.choose.learn.budget import ALLOWANCE_S, GRACE_S, Hand, Pace
from nxcore.choose.learn.exploration import Check, Exploration
from nxcore.choose.learn.watches import Watches
from nxcore.choose.recall import Recall
from nxcore.choose.workers import POLL_S, Answer, Workers
from nxcore.context import KernelWarning
from nxcore.errors import present
from nxcore.measure.decision import Candidate, Decision, settled
from nxcore.measure.race import Clock
from nxcore.measure.timing import Timing
from nxcore.spec import tally
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.device import heed_no_capture
from nxcore.spec.kernel import Backend, Code, Kernel, Refusal
from nxcore.spec.problem import Problem
from nxcore.store.problems import arguments
from nxcore.trust.gate import brief, pausing

_log = logging.getLogger(__name__)

Decided = Callable[[Choice], None]
Wrap = Callable[[Choice, Problem], Callable[..., Any]]
Family = Callable[[Problem], Choice | None]

KNOWN_S, VERIFIED_S, TOOLKIT_S, UNKNOWN_S, LOOK_S = 0.05, 0.3, 0.25, 2.0, 0.01
"""Seconds allowed for a verified kernel on disk, for one that must be verified, for its toolkit's import, for
a step of a kernel that must be compiled, and for a look at the times."""

BESIDE = 0.02
"""The share of a worker's processor time that is taken to delay the program: an assumption."""

WAITING = 4096
"""The most problems that wait for their kernels; beyond it torch keeps the oldest."""

NO_TURNS = Refusal(Code.POLICY, "takes no turns: it returns another result than the operator")

RACE_S = 0.5
"""Seconds allowed for a race in the background."""


class Learner:
    """Starts explorations, and does their work in one background thread, within its budget.

    Parameters
    ----------
    recall : Recall
        Keeps the results; its tuner determines which kernels may take part.
    changed : callable
        Called when plans must be made again, after a decision.
    watches : Watches
        Watch the candidates of explorations, and the winners.
    clock : callable
        Returns nanoseconds; a test may replace it.
    pace : Pace, optional
        The budget of the thread.
    wrap : callable
        ``wrap(choice, problem)`` returns the chosen call with its wrappers.
    family : callable
        Returns the choice for a problem that needs no exploration, or None.

    Attributes
    ----------
    loaded : set of str
        The backends whose toolkits the learner has used in this process.
    compiling : int
        The number of kernels that workers compile or will compile.
    """

    def __init__(
        self,
        recall: Recall,
        changed: Callable[[], None],
        watches: Watches,
        clock: Clock = time.perf_counter_ns,
        pace: Pace | None = None,
        *,
        wrap: Wrap,
        family: Family = lambda _: None,
    ) -> None:
        self.recall, self.tuner, self.clock = recall, recall.tuner, clock
        self._changed, self.undone, self.watches = changed, False, watches
        self.wrap, self.family = wrap, family
        self.loaded, self.compiling = set[str](), 0
        self.keep_to(pace or Pace(allowance=ALLOWANCE_S, grace=GRACE_S))

    def keep_to(self, pace: Pace) -> None:
        """Use new hands: one for long work and one for verdicts, which then don't wait for it."""
        self.pace = pace
        self.preparing, self.judging = (
            Hand(pace, idle=self._idle, failed=self._failed, most=WAITING, ahead=ahead)
            for ahead in (KNOWN_S, 0.0)
        )

    def refusal(self, problem: Problem) -> str:
        """Return why a problem's calls can't be explored; empty if they can. Longer checks are made later."""
        if problem.writes:
            return "it writes into an argument"
        if torch.are_deterministic_algorithms_enabled():
            return "under a deterministic setting calls must not differ"
        if problem.view:
            return "it is a view: there is nothing to run"
        if len(self.tuner.taking_part(problem.op)) == 1 or not threading.main_thread().is_alive():
            return "no other kernel accepts it"
        return ""

    def start(self, problem: Problem, serve: Decided) -> Choice:
        """Return the choice for ``problem`` from now on: torch, and later the exploration."""
        backend, kernel = self.tuner.taking_part(problem.op)[0]
        self.pace.begin()
        exploration = Lesson(self, problem, serve).exploration
        reason = "its first calls take turns between torch's own and the kernels that are ready"
        return Choice(Decision("torch", "exploring", reason), exploration.call, kernel, backend)

    def settle(self, timeout: float | None = None) -> None:
        """Wait until there is no background work left."""
        ends = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            for hand in (self.preparing, self.judging):
                if thread := hand.thread:
                    thread.join(timeout)
            busy = self.compiling or self.preparing.thread or self.judging.thread
            if not busy or time.monotonic() > ends:
                return
            time.sleep(POLL_S)

    def after_fork(self) -> None:
        """Start again in a forked child, which has no background threads."""
        self.compiling = 0
        if self.tuner.workers:
            self.tuner.workers.after_fork()
        self.keep_to(self.pace.anew())

    def _idle(self) -> None:
        """Have plans made again after decisions: once for several decisions in a row."""
        undone, self.undone = self.undone, False
        if undone:
            self._changed()

    def _failed(self, error: Exception) -> None:
        text = f"learning from calls failed with {brief(error)}; torch serves them"
        warnings.warn(text, KernelWarning, stacklevel=1)


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
        racing = [
            e for e in self._entries if e.call and not e.candidate.refusal and not e.candidate.simulated
        ]
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
        watched = self._learner.watches.over(replace(choice, captured=None), self._problem)
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
            with self._tuner.gate.watched(suspect, problem.device, f"its first run on {problem}"):
                result = watch.inspected(args, audit=True) if watch else call(*args)
                check_result(result, problem)
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
