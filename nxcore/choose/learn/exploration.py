"""Learning from real calls: the first calls of a problem are its benchmark.

Calls take turns between torch's own and the candidates, in rounds of random order, so that drift affects all
alike. Each call does the caller's work and is timed in place: on the CPU by a clock, on CUDA by two events
that are read later. Nothing runs twice, nothing waits, no memory is taken. Torch's own serves until all
candidates are ready, while the times are judged, and while the budget for timed calls is used up.
"""

from __future__ import annotations

import functools
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from nxcore.choose.learn.budget import Heat, Pace
from nxcore.measure.race import DROP, DROP_AFTER, Clock
from nxcore.measure.timing import Timing

LOOKS = (12, 20, 40)
"""Rounds after which the verdicts are computed; the exploration ends after the last one."""

MET = 8
"""Calls after which a problem is explored: a shape that occurs only once is not worth it."""

HOPELESS = 10.0
"""A candidate is dropped if its second time is this much worse than torch's, or its first by the square."""

FIRST_US = 10_000.0
"""Extra time allowed to a first run, which may load, link or allocate."""

Call = Callable[..., Any]
Check = Callable[[tuple[Any, ...], Any], Any]


class Switch:
    """A callable whose target can be replaced.

    Parameters
    ----------
    of : object
        The owner; it lives as long as the call.
    target : callable
        The first target.

    Attributes
    ----------
    call : callable
        A ``partial``: its overhead can't be measured in a call of a microsecond, while that of a Python
        function is a tenth of it.
    """

    def __init__(self, of: object, target: Call) -> None:
        self._of, self.call = of, functools.partial[Any](target)
        self.to(target)

    @property
    def target(self) -> Call:
        """The present target of ``call``."""
        return self.call.func

    def to(self, target: Call) -> None:
        """Replace the target; the old one must outlive calls of it in other threads."""
        self.call.__setstate__((target, (), {}, {"of": self._of}))  # type: ignore[attr-defined]  # typeshed lacks it


class Watcher(Protocol):
    """An object that is notified when an exploration begins to take turns, and when it rests."""

    def turn(self) -> None:
        """React to the change."""


class Exploration:
    """A call that takes turns between several kernels until the fastest is clear.

    Parameters
    ----------
    reference : callable
        torch's own: serves all calls that aren't a candidate's turn.
    device : torch.device
        The device that does the work.
    wanted : callable
        Called once the problem was met often enough; ``begin`` or ``end`` must follow later.
    look : callable
        Called with the timings after some rounds, and whether they were the last; ``resume`` or ``end`` must
        follow.
    failed : callable
        Called with the label and the exception of a candidate that raised.
    pace : Pace
        Charged with the cost of the turns.
    rests : callable
        Called after a round that used up the budget; ``resume`` must follow.
    clock : callable
        Returns nanoseconds; a test may replace it.
    seed : int
        Seed of the order within rounds.

    Attributes
    ----------
    call : callable
        Does the caller's work, with the kernel whose turn it is.
    over : bool
        Whether the exploration has ended.
    apart : bool
        Whether its calls take no turns, so that the kernels are raced in the background.
    heat : Heat
        The problem's share of the program's time.
    """

    def __init__(
        self,
        reference: Call,
        device: torch.device,
        *,
        wanted: Callable[[], None],
        look: Callable[[Mapping[str, Timing], bool], None],
        failed: Callable[[str, Exception], None],
        pace: Pace,
        rests: Callable[[], None],
        clock: Clock = time.perf_counter_ns,
        seed: int = 0,
    ) -> None:
        self.reference, self.device, self.clock = reference, device, clock
        self._wanted, self._looks, self._failed = wanted, look, failed
        self.pace, self._rests = pace, rests
        self._calls: dict[str, Call] = {}
        self._rounds: dict[str, list[tuple[float, float]]] = {}
        self._rivals: frozenset[str] = frozenset()
        self._again, self._repeats = "", ""
        self._checks: dict[str, Check] = {}
        self._order: list[str] = []
        self._pending: deque[tuple[str, float, Any, Any]] = deque()
        self._turn, self._dice = threading.Lock(), random.Random(seed)
        self._started, self._done, self._met = 0, 0, 0
        self._least, self._own, self._own_us = float("inf"), "", float("inf")
        self.over, self.apart, self.heat = False, False, Heat()
        # Kept, since a switch's target must outlive calls of it in other threads.
        self._steps = (self._meet, self._take_turns)
        self._watchers: tuple[weakref.ref[Watcher], ...] = ()
        self._switch = Switch(self, self._steps[0])
        self.call = self._switch.call

    @property
    def serve(self) -> Call:
        """The present target of ``call``."""
        return self._switch.target

    @property
    def known(self) -> bool:
        """Whether the problem was met often enough."""
        return self._met >= MET

    @property
    def engaged(self) -> bool:
        """Whether a call may be served by a candidate."""
        return self.serve not in (self.reference, self._steps[0])

    def watch(self, watcher: Watcher) -> None:
        """Notify ``watcher``, for as long as it lives, when ``engaged`` may have changed."""
        with self._turn:
            self._watchers = (*(w for w in self._watchers if w()), weakref.ref(watcher))

    def _go_to(self, call: Call) -> None:
        self._switch.to(call)
        for known in self._watchers:
            if watcher := known():
                watcher.turn()

    def met(self, times: int = 1) -> None:
        """Count calls; after enough of them the exploration is started."""
        with self._turn:  # otherwise two threads could both reach the count, or neither
            before, self._met = self._met, self._met + times
            wanted = before < MET <= self._met
        if wanted:
            self._go_to(self.reference)
            self._wanted()

    def begin(
        self,
        calls: Mapping[str, Call],
        rivals: frozenset[str],
        again: str = "",
        checks: Mapping[str, Check] | None = None,
    ) -> None:
        """Take turns from now on.

        The first call is the reference, and ``rivals`` are all of torch's own ways. A rival is dropped only
        if it is slow among these. The fastest one of the first round takes a second turn in each later
        round, under the label ``again``: the A/A row. Neither these two nor the reference are dropped. If a
        label has a check, it is called with the arguments and the result of each timed turn. It returns the
        caller's result, or raises.
        """
        self._rivals, self._again, self._checks = rivals, again, dict(checks or {})
        self._rounds = {label: [] for label in calls}
        self._calls, self._own = dict(calls), next(iter(calls))
        self.resume()

    def resume(self) -> None:
        """Continue to take turns."""
        self._go_to(self._steps[1])

    def end(self, call: Call) -> None:
        """Let ``call`` serve all calls from now on."""
        self.over = True
        self._go_to(call)
        self._calls, self._checks = {}, {}

    @property
    def progress(self) -> tuple[int, int]:
        """The number of complete rounds, and the largest possible number."""
        return min((len(r) for r in self._rounds.values()), default=0), LOOKS[-1]

    @property
    def _taking_turns(self) -> bool:
        return self.serve is self._steps[1]

    def _meet(self, *args: Any) -> Any:
        began = self.clock()
        result = self.reference(*args)
        self.heat.note(began, self.clock())
        self.met()
        return result

    def _take_turns(self, *args: Any) -> Any:
        if self._capturing() or not self._turn.acquire(blocking=False):
            return self.reference(*args)
        try:
            self._harvest()
            if not self._taking_turns:
                return self.reference(*args)
            if not self._order:
                if self._started == LOOKS[-1] + 1 or (self._started and self._again and not self._repeats):
                    return self.reference(*args)  # the last events haven't completed yet
                self._order = self._new_order()
                self._started += 1
            return self._run(self._order.pop(), args)
        finally:
            self._turn.release()

    def _new_order(self) -> list[str]:
        order = list(self._calls)
        self._dice.shuffle(order)
        if not self._started:  # torch's own first, at the end of the list: the others are compared with it
            order.sort(key=lambda label: label in self._rivals)
        return order

    def _run(self, label: str, args: tuple[Any, ...]) -> Any:
        call = self._calls[label]
        entered, told = self.clock(), self.pace.charged
        try:
            if self.device.type == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                began = self.clock()
                result = call(*args)
                spent = self.clock() - began
                host_us = spent * 1e-3
                end.record()
                within = self.pace.charged
                result = self._checked(label, args, result)
                checked = self.pace.charged
                self._pending.append((label, host_us, start, end))
            else:
                began = self.clock()
                result = call(*args)
                spent = self.clock() - began
                within = self.pace.charged
                result = self._checked(label, args, result)
                checked = self.pace.charged
                self._note(label, spent * 1e-3, spent * 1e-3, (within - told) * 1e6)
        except Exception as error:
            if label in self._rivals:
                self._order.append(label)  # the round must be complete
                raise
            self._drop(label)
            self._failed(label, error)
            self._end_round()
            return self.reference(*args)
        # The overhead of the turn, without that of checks, which the watch has charged.
        self.pace.charge(max(0.0, (self.clock() - entered - spent) * 1e-9 - (checked - within)))
        return result

    def _checked(self, label: str, args: tuple[Any, ...], result: Any) -> Any:
        check = self._checks.get(label)
        return check(args, result) if check else result

    def _capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _harvest(self) -> None:
        """Read the times of completed events, in order. Wait for none, and stop where verdicts are due."""
        while self._pending and self._taking_turns and self._pending[0][3].query():
            label, host_us, start, end = self._pending.popleft()
            if label in self._calls:
                self._note(label, start.elapsed_time(end) * 1e3, host_us)

    def _note(self, label: str, device_us: float, host_us: float, charged_us: float = 0.0) -> None:
        """Note a turn's time, and charge what it took above torch's own, except what is charged already."""
        self._rounds[label].append((device_us, host_us))
        us = max(device_us, host_us)
        if label in self._rivals:
            self._least = min(self._least, us)
        if label == self._own:
            self._own_us = min(self._own_us, us)
        elif self._own_us < float("inf"):
            self.pace.charge(max(0.0, us - self._own_us - charged_us) * 1e-6)
        mine = len(self._rounds[label])
        if label not in self._rivals and mine <= DROP_AFTER:
            limit = HOPELESS * self._least if mine > 1 else HOPELESS**2 * self._least + FIRST_US
            if us > limit:
                self._drop(label)
        self._end_round()

    def _end_round(self) -> None:
        """After a complete round, drop slow candidates; where verdicts are due, torch serves until then."""
        counts = {len(self._rounds[name]) for name in self._calls}
        done = counts.pop()
        if counts or done == self._done:
            return
        self._done = done
        if done == 1 and self._again:
            self._enter_again()
        timings = self.timings
        if done == DROP_AFTER + 1:  # the first one is warm-up
            for label in self._slow(timings):
                self._drop(label)
        if done - 1 in LOOKS:
            self._go_to(self.reference)
            self._looks(timings, done - 1 == LOOKS[-1])
        elif not self.pace.affords:
            self._go_to(self.reference)
            self._rests()

    def _slow(self, timings: Mapping[str, Timing]) -> list[str]:
        """Return the labels to drop: kernels by the best of all, torch's ways by the best of these."""
        best = min(t.median_us for t in timings.values())
        torchs = min(t.median_us for label, t in timings.items() if label in self._rivals)
        kept = (self._own, self._again, self._repeats)
        return [
            label
            for label, t in timings.items()
            if t.median_us > DROP * (torchs if label in self._rivals else best) and label not in kept
        ]

    def _enter_again(self) -> None:
        """After the first round, let the fastest rival take a second turn in all later ones."""
        fastest = min(self._rivals & self._calls.keys(), key=lambda label: max(self._rounds[label][0]))
        self._calls[self._again], self._rounds[self._again] = self._calls[fastest], self._rounds[fastest][:1]
        self._rivals, self._repeats = self._rivals | {self._again}, fastest

    @property
    def timings(self) -> dict[str, Timing]:
        """The times of each label, round by round, without the first round, which is warm-up."""
        found = {}
        for label, values in self._rounds.items():
            if kept := values[1:]:
                of = self._repeats if label == self._again else ""
                found[label] = Timing(tuple(v[0] for v in kept), tuple(v[1] for v in kept), of)
        return found

    def _drop(self, label: str) -> None:
        self._calls.pop(label, None)
        self._order = [name for name in self._order if name != label]


def exploration(call: Call) -> Exploration | None:
    """Return the exploration that a call belongs to, or None."""
    found = getattr(call, "of", None)
    return found if isinstance(found, Exploration) else None
