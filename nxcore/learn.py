"""Online: a new problem's kernels are made ready in the background; its calls tell which is best."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from nxcore.choice import AGAIN, Choice, Entry, carry_out, check_result, decided, leaves_of, timed
from nxcore.dispatch import KernelWarning
from nxcore.gate import brief
from nxcore.guards import guarded
from nxcore.measure import Clock
from nxcore.online import Exploration
from nxcore.problem import Problem
from nxcore.recall import Recall
from nxcore.select import Decision, settled
from nxcore.timing import Timing

Decided = Callable[[Choice], None]


class Learner:
    """Starts explorations, one background thread a problem, one at work at a time.

    Parameters
    ----------
    recall : Recall
        Keeps what was learnt; its tuner knows who may take part.
    clock : callable
        Nanoseconds; a test may bring its own.
    """

    def __init__(self, recall: Recall, clock: Clock = time.perf_counter_ns) -> None:
        self.recall, self.tuner, self.clock = recall, recall.tuner, clock
        self._one_at_a_time = threading.Lock()
        self.threads: list[threading.Thread] = []

    def takes(self, problem: Problem) -> bool:
        """Tell whether a problem can be learnt from its calls.

        Not one that writes into an argument, one without work, or one whose torch is a yardstick that
        answers otherwise; and not under a deterministic setting, where calls must not differ.
        """
        return not (
            problem.writes
            or problem.view
            or problem.spec.yardsticks
            or torch.are_deterministic_algorithms_enabled()
            or any(m.numel() == 0 for m in leaves_of(problem.outputs))
            or not self.tuner.accepting(problem)
        )

    def start(self, problem: Problem, serve: Decided) -> Choice:
        """Return what serves ``problem`` from now on: torch, and soon everybody in turn."""
        backend, kernel = self.tuner.taking_part(problem.op)[0]
        entries: list[Entry] = []

        def finish(timings: Mapping[str, Timing]) -> Callable[..., Any]:
            candidates = timed([e.candidate for e in entries], timings)
            decision = decided(problem, candidates, timings.get(AGAIN), entries, learnt=True)
            self.recall.keep(problem, decision, timings.get(AGAIN), "online")
            choice = carry_out(decision, entries)
            serve(choice)
            return guarded(replace(choice, captured=None), problem)

        def failed(label: str, error: Exception) -> None:
            at = next(i for i, e in enumerate(entries) if e.candidate.label == label)
            reason = self.tuner.failed(entries[at].backend, entries[at].kernel, problem, error)
            entries[at] = replace(
                entries[at], candidate=replace(entries[at].candidate, refusal=reason), call=None
            )
            warnings.warn(
                f"{label}, a kernel of {problem.op!r}, raised {brief(error)}; it takes no more turns",
                KernelWarning,
                stacklevel=5,
            )

        exploration = Exploration(
            problem.spec.reference,
            problem.device,
            settled=lambda seen: settled(timed([e.candidate for e in entries], seen), seen.get(AGAIN)),
            finished=finish,
            failed=failed,
            clock=self.clock,
        )

        def prepare() -> None:
            with self._one_at_a_time:
                for b, k in self.tuner.taking_part(problem.op):
                    if not threading.main_thread().is_alive():
                        return  # the process ends: nobody will call again
                    entries.append(self.tuner.enter(b, k, problem, (), first=False))
            racing = [e for e in entries if e.call and not e.candidate.refusal and not e.candidate.simulated]
            if len(racing) == 1:
                candidates = tuple(e.candidate for e in entries)
                why = "no other backend has a kernel for this call"
                serve(
                    Choice(
                        Decision("torch", "reference", why, candidates),
                        problem.spec.reference,
                        kernel,
                        backend,
                    )
                )
                exploration.end(problem.spec.reference)
                return
            calls = {e.candidate.label: self._careful(e, problem) for e in racing} | {
                AGAIN: problem.spec.reference
            }
            exploration.begin(
                calls, frozenset({AGAIN, *(e.candidate.label for e in racing if e.candidate.native)})
            )

        thread = threading.Thread(target=prepare, name=f"nxcore {problem.op}")
        self.threads = [t for t in self.threads if t.is_alive()] + [thread]
        thread.start()
        reason = "its first calls take turns between torch's own and the kernels that are ready"
        return Choice(Decision("torch", "exploring", reason), exploration, kernel, backend)

    def _careful(self, entry: Entry, problem: Problem) -> Callable[..., Any]:
        """Wrap a kernel's call so that its first run is in the journal, waited for, and looked at."""
        call = entry.call
        assert call is not None  # noqa: S101  the caller looked
        if entry.candidate.native:
            return call
        suspect = self.tuner.gate.suspect(entry.backend, entry.kernel, problem.device, problem.dtype)
        first = True

        def run(*args: Any) -> Any:
            nonlocal first
            if not first:
                return call(*args)
            with self.tuner.gate.watched(suspect, problem.device, f"its first run on {problem}"):
                result = call(*args)
                check_result(result, problem)
            first = False
            return result

        return run
