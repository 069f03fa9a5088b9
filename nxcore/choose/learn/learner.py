"""Online: a new problem's kernels are made ready in the background; its calls tell which is best."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

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
from nxcore.choose.learn.budget import Hand, Pace
from nxcore.choose.learn.exploration import Check, Exploration
from nxcore.choose.learn.watches import Watches
from nxcore.choose.recall import Recall
from nxcore.context import KernelWarning
from nxcore.errors import present
from nxcore.measure.decision import Candidate, Decision, settled
from nxcore.measure.race import Clock
from nxcore.measure.timing import Timing
from nxcore.spec.device import heed_no_capture
from nxcore.spec.kernel import Code, Refusal
from nxcore.spec.problem import Problem
from nxcore.trust.gate import brief, pausing

Decided = Callable[[Choice], None]
Wrap = Callable[[Choice, Problem], Callable[..., Any]]

KNOWN_S, UNKNOWN_S, LOOK_S = 1.0, 2.0, 0.01
"""What is allowed for a kernel that is verified already, for a step of one that isn't, and for a look."""

WAITING = 4096
"""Problems that may wait for their kernels; the one that waits longest is left to torch."""


NO_TURNS = Refusal(Code.POLICY, "takes no turns: it answers otherwise than the operator")


class Learner:
    """Starts explorations, and does in one background thread what is needed for them, at its pace.

    Parameters
    ----------
    recall : Recall
        Keeps what was learnt; its tuner knows who may take part.
    changed : callable
        Called when all that is decided may be planned anew.
    watches : Watches
        Watch what takes turns, and what serves after that.
    clock : callable
        Nanoseconds; a test may bring its own.
    pace : Pace, optional
        How much of the time the thread may take.
    wrap : callable
        ``wrap(choice, problem)`` returns the chosen call behind what it needs around it.
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
    ) -> None:
        self.recall, self.tuner, self.clock = recall, recall.tuner, clock
        self._changed, self._undone, self.watches = changed, False, watches
        self._wrap = wrap
        self.keep_to(pace or Pace())

    def keep_to(self, pace: Pace) -> None:
        """Begin with hands of its own: what takes long keeps no verdict waiting."""
        self.pace = pace
        self._preparing, self._judging = (
            Hand(pace, idle=self._idle, failed=self._failed, most=WAITING) for _ in range(2)
        )

    def refusal(self, problem: Problem) -> str:
        """Return why a problem can't be learnt from its calls; empty if it can.

        What takes longer to tell is told in the background.
        """
        if problem.writes:
            return "it writes into an argument"
        if torch.are_deterministic_algorithms_enabled():
            return "under a deterministic setting calls must not differ"
        if problem.view:
            return "it is a view: there is nothing to run"
        if len(self.tuner.taking_part(problem.op)) == 1 or not threading.main_thread().is_alive():
            return "nobody else can take a turn"
        return ""

    def start(self, problem: Problem, serve: Decided) -> Choice:
        """Return what serves ``problem`` from now on: torch, and in time everybody in turn."""
        backend, kernel = self.tuner.taking_part(problem.op)[0]
        entries: list[Contender] = []
        self.pace.begin()

        def failed(label: str, error: Exception) -> None:
            at = next(i for i, e in enumerate(entries) if e.candidate.label == label)
            suspect = entries[at].backend, entries[at].kernel, problem
            # What a watch convicted is in quarantine: to raise for that is no strike.
            reason = self.tuner.gate.refusal(*suspect) or self.tuner.failed(*suspect, error)
            entries[at] = replace(
                entries[at], candidate=replace(entries[at].candidate, refusal=reason), call=None
            )
            warnings.warn(
                f"{label}, a kernel of {problem.op!r}, raised {brief(error)}; it takes no more turns",
                KernelWarning,
                stacklevel=6,
            )

        def finish(choice: Choice) -> None:
            serve(choice)
            watched = self.watches.over(replace(choice, captured=None), problem)
            exploration.end(self._wrap(watched, problem))
            self._undone = True

        def judge(timings: Mapping[str, Timing], last: bool) -> None:
            self.pace.rest(LOOK_S)
            for i, e in enumerate(entries):  # one may have been convicted in another problem's calls
                if not e.candidate.refusal and (why := self.tuner.gate.refusal(e.backend, e.kernel, problem)):
                    entries[i] = replace(e, candidate=replace(e.candidate, refusal=why), call=None)
            candidates, again = timed([e.candidate for e in entries], timings), timings.get(AGAIN)
            if not (last or settled(candidates, again)):
                exploration.resume()
                return
            decision = decided(problem, candidates, again, entries, learnt=True)
            choice = replace(carry_out(decision, entries), again=again)
            finish(self.recall.kept(problem, (), choice, "online"))

        def prepare() -> None:
            entries.extend(self._entered(problem))
            racing = [e for e in entries if e.call and not e.candidate.refusal and not e.candidate.simulated]
            if len(racing) < 2:
                why = "no other backend has a kernel for this call"
                decision = Decision("torch", "reference", why, tuple(e.candidate for e in entries))
                finish(Choice(decision, problem.spec.reference, kernel, backend))
                return
            calls, checks = {}, {}
            for e in racing:
                calls[e.candidate.label], checks[e.candidate.label] = self._careful(e, problem)
            native = (e.candidate.label for e in racing if e.candidate.native)
            exploration.begin(calls, frozenset(native), AGAIN, checks)

        def rest() -> None:
            self.pace.rest(0.0)
            exploration.resume()

        exploration = Exploration(
            problem.spec.reference,
            problem.device,
            wanted=lambda: self._preparing.add(prepare),
            look=lambda timings, last: self._judging.add(lambda: judge(timings, last)),
            failed=failed,
            pace=self.pace,
            rests=lambda: self._judging.add(rest),
            clock=self.clock,
        )
        reason = "its first calls take turns between torch's own and the kernels that are ready"
        return Choice(Decision("torch", "exploring", reason), exploration.call, kernel, backend)

    def settle(self, timeout: float | None = None) -> None:
        """Wait until the background has nothing left to do."""
        for hand in (self._preparing, self._judging):
            if thread := hand.thread:
                thread.join(timeout)

    def after_fork(self) -> None:
        """Begin anew in a forked child, which has no background threads."""
        self.keep_to(Pace(self.pace.share))

    def _idle(self) -> None:
        """Have all that is decided planned anew: once, where several were learnt in a row."""
        undone, self._undone = self._undone, False
        if undone:
            self._changed()

    def _failed(self, error: Exception) -> None:
        text = f"learning from calls met {brief(error)}; torch serves them"
        warnings.warn(text, KernelWarning, stacklevel=1)

    def _entered(self, problem: Problem) -> Iterator[Contender]:
        """Ask, verify and plan every kernel, with rests in between; none if there is no work."""
        self.pace.rest(KNOWN_S)
        if problem.device.type == "cuda":
            heed_no_capture()
        if any(m.numel() == 0 for m in leaves_of(problem.outputs)):
            return
        with pausing(lambda: self.pace.rest(UNKNOWN_S)):
            for backend, kernel in self.tuner.taking_part(problem.op):
                candidate = Candidate(backend.label(kernel), backend.name)
                if yardstick(kernel):
                    yield Contender(backend, kernel, replace(candidate, refusal=NO_TURNS))
                elif self.tuner.registry.probe(backend, kernel).simulated:
                    yield Contender(backend, kernel, replace(candidate, simulated=True))
                else:
                    if not self.tuner.refusal(backend, kernel, problem):
                        known = self.tuner.gate.knows(backend, kernel, problem)
                        self.pace.rest(KNOWN_S if known else UNKNOWN_S)
                    yield self.tuner.enter(backend, kernel, problem, (), first=False)

    def _careful(self, entry: Contender, problem: Problem) -> tuple[Callable[..., Any], Check]:
        """Return a kernel's call for its turns, and what looks at their results once they are timed.

        Its first run is in the journal, waited for, and audited.
        """
        call = present(entry.call, "entry.call")
        if entry.candidate.native:
            return call, _as_it_is
        suspect = self.tuner.gate.suspect(entry.backend, entry.kernel, problem.device, problem.dtype)
        watch = self.watches.watch(entry.backend, entry.kernel, call, problem) if self.watches.on else None
        first = True

        def run(*args: Any) -> Any:
            nonlocal first
            if not first:
                return call(*args)
            with self.tuner.gate.watched(suspect, problem.device, f"its first run on {problem}"):
                result = watch.inspected(args, audit=True) if watch else call(*args)
                check_result(result, problem)
            first = False
            return result

        return run, watch.look if watch else _as_it_is


def _as_it_is(_args: tuple[Any, ...], result: Any) -> Any:
    return result
