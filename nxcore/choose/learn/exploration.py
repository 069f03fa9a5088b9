"""Learning from real calls: the first calls of a problem are its benchmark.

Calls take turns between torch's own and the candidates, in rounds of random order, so that drift hits
all alike. Each does the caller's work and is timed in place: on the CPU by a clock, on CUDA by two events
that are asked later whether they have come to pass. Nothing runs twice, nothing waits, no memory is taken.
Until all are ready, while somebody looks at the times, and while turns have cost enough, torch's own serves.
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

from nxcore.choose.learn.budget import Pace
from nxcore.measure.race import DROP, DROP_AFTER, Clock
from nxcore.measure.timing import Timing

LOOKS = (12, 20, 40)
"""Rounds after which the verdicts are looked at; after the last one the exploration ends."""

MET = 8
"""Calls after which a problem is worth the work: a shape that comes but once is not."""

HOPELESS = 10.0
"""A second time this much worse than torch's ends a candidate at once, a first one by the square of it."""

FIRST_US = 10_000.0
"""What a first run may take above that: it may load, link or allocate."""

Call = Callable[..., Any]
Check = Callable[[tuple[Any, ...], Any], Any]


class Switch:
    """A call that goes elsewhere from time to time.

    Parameters
    ----------
    of : object
        Whose it is; lives as long as the call.
    target : callable
        Where it goes at first.

    Attributes
    ----------
    call : callable
        A ``partial``, which costs a call of a microsecond nothing that can be measured, while a function of
        Python's costs it a tenth.
    """

    def __init__(self, of: object, target: Call) -> None:
        self._of, self.call = of, functools.partial[Any](target)
        self.to(target)

    @property
    def target(self) -> Call:
        """What ``call`` goes to at present."""
        return self.call.func

    def to(self, target: Call) -> None:
        """Let all calls go to ``target``, which must outlive the one that another thread is in."""
        self.call.__setstate__((target, (), {}, {"of": self._of}))  # type: ignore[attr-defined]  # typeshed lacks it


class Watcher(Protocol):
    """Who wants to know when an exploration begins to take turns, and when it rests."""

    def turn(self) -> None:
        """Look at it."""


class Exploration:
    """A call that is several: it takes turns until it is clear which of them is best.

    Parameters
    ----------
    reference : callable
        torch's own: serves whenever it is nobody's turn.
    device : torch.device
        Where the work happens.
    wanted : callable
        Called once the problem was met often enough; in time, ``begin`` or ``end`` are to follow.
    look : callable
        Given the timings after some rounds, and whether they were the last; ``resume`` or ``end`` are to
        follow.
    failed : callable
        Told the label and the exception of a candidate that raised.
    pace : Pace
        Is charged with what turns cost.
    rests : callable
        Called after a round where turns have cost enough for now; ``resume`` is to follow.
    clock : callable
        Nanoseconds; a test may bring its own.
    seed : int
        Of the order within rounds.

    Attributes
    ----------
    call : callable
        Does the caller's work, by whoever's turn it is.
    over : bool
        No more turns are taken.
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
        self._least, self.over = float("inf"), False
        # Kept: what a switch goes to must outlive the call that another thread is in.
        self._steps = (self._meet, self._take_turns)
        self._watchers: tuple[weakref.ref[Watcher], ...] = ()
        self._switch = Switch(self, self._steps[0])
        self.call = self._switch.call

    @property
    def serve(self) -> Call:
        """What ``call`` goes to at present."""
        return self._switch.target

    @property
    def known(self) -> bool:
        """Whether the problem was met often enough."""
        return self._met >= MET

    @property
    def engaged(self) -> bool:
        """Whether a call may be served by another than torch's own."""
        return self.serve not in (self.reference, self._steps[0])

    def watch(self, watcher: Watcher) -> None:
        """Tell ``watcher``, for as long as it lives, where ``engaged`` may have changed."""
        with self._turn:
            self._watchers = (*(w for w in self._watchers if w()), weakref.ref(watcher))

    def _go_to(self, call: Call) -> None:
        self._switch.to(call)
        for known in self._watchers:
            if watcher := known():
                watcher.turn()

    def met(self, times: int = 1) -> None:
        """Count calls; enough of them make the problem worth the work."""
        with self._turn:  # two threads that count at once would both be the last, or neither
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
        """Take turns from now on; ``rivals``, torch's own among them, are never dropped.

        The fastest of them in the first round takes a second turn in each later one, under the label
        ``again``: the A/A row. Where a label has a check, it is given the arguments and the result of each of
        its turns, once the turn is timed. It returns the caller's result, or raises.
        """
        self._rivals, self._again, self._checks = rivals, again, dict(checks or {})
        self._rounds = {label: [] for label in calls}
        self._calls = dict(calls)
        self.resume()

    def resume(self) -> None:
        """Go on taking turns after a look."""
        self._go_to(self._steps[1])

    def end(self, call: Call) -> None:
        """Serve all calls by ``call`` from now on."""
        self.over = True
        self._go_to(call)
        self._calls, self._checks = {}, {}

    @property
    def progress(self) -> tuple[int, int]:
        """The rounds that are complete, and the most there can be."""
        return min((len(r) for r in self._rounds.values()), default=0), LOOKS[-1]

    @property
    def _taking_turns(self) -> bool:
        return self.serve is self._steps[1]

    def _meet(self, *args: Any) -> Any:
        self.met()
        return self.reference(*args)

    def _take_turns(self, *args: Any) -> Any:
        if self._capturing() or not self._turn.acquire(blocking=False):
            return self.reference(*args)
        try:
            self._harvest()
            if not self._taking_turns:
                return self.reference(*args)
            if not self._order:
                if self._started == LOOKS[-1] + 1 or (self._started and self._again and not self._repeats):
                    return self.reference(*args)  # the last events have not come to pass yet
                self._order = self._new_order()
                self._started += 1
            return self._run(self._order.pop(), args)
        finally:
            self._turn.release()

    def _new_order(self) -> list[str]:
        order = list(self._calls)
        self._dice.shuffle(order)
        if not self._started:  # torch's own first, at the end: what the others are held to from the start
            order.sort(key=lambda label: label in self._rivals)
        return order

    def _run(self, label: str, args: tuple[Any, ...]) -> Any:
        call = self._calls[label]
        entered = self.clock()
        try:
            if self.device.type == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                began = self.clock()
                result = call(*args)
                spent = self.clock() - began
                host_us = spent * 1e-3
                end.record()
                result = self._checked(label, args, result)
                self._pending.append((label, host_us, start, end))
            else:
                began = self.clock()
                result = call(*args)
                spent = self.clock() - began
                result = self._checked(label, args, result)
                self._note(label, spent * 1e-3, spent * 1e-3)
        except Exception as error:
            if label in self._rivals:
                self._order.append(label)  # the round is to be whole
                raise
            self._drop(label)
            self._failed(label, error)
            self._end_round()
            return self.reference(*args)
        self.pace.charge((self.clock() - entered - spent) * 1e-9)  # the turn's own price
        return result

    def _checked(self, label: str, args: tuple[Any, ...], result: Any) -> Any:
        check = self._checks.get(label)
        return check(args, result) if check else result

    def _capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _harvest(self) -> None:
        """Take the times of events that have come to pass, in order; wait for none, stop at a look."""
        while self._pending and self._taking_turns and self._pending[0][3].query():
            label, host_us, start, end = self._pending.popleft()
            if label in self._calls:
                self._note(label, start.elapsed_time(end) * 1e3, host_us)

    def _note(self, label: str, device_us: float, host_us: float) -> None:
        self._rounds[label].append((device_us, host_us))
        us = max(device_us, host_us)
        if label in self._rivals:
            self._least = min(self._least, us)
        else:
            torchs = self._least if self._least < float("inf") else 0.0  # not known before its first turn
            self.pace.charge(max(0.0, us - torchs) * 1e-6)
        mine = len(self._rounds[label])
        if label not in self._rivals and mine <= DROP_AFTER:
            limit = HOPELESS * self._least if mine > 1 else HOPELESS**2 * self._least + FIRST_US
            if us > limit:
                self._drop(label)
        self._end_round()

    def _end_round(self) -> None:
        """After a whole round, drop the slow; where it is time to look, torch serves until somebody did."""
        counts = {len(self._rounds[name]) for name in self._calls}
        done = counts.pop()
        if counts or done == self._done:
            return
        self._done = done
        if done == 1 and self._again:
            self._enter_again()
        timings = self.timings
        if done == DROP_AFTER + 1:  # of which the first warmed up
            best = min(t.median_us for t in timings.values())
            for label in [
                n for n, t in timings.items() if t.median_us > DROP * best and n not in self._rivals
            ]:
                self._drop(label)
        if done - 1 in LOOKS:
            self._go_to(self.reference)
            self._looks(timings, done - 1 == LOOKS[-1])
        elif not self.pace.affords:
            self._go_to(self.reference)
            self._rests()

    def _enter_again(self) -> None:
        """Let the fastest of the rivals, after the first round, take a second turn in those that follow."""
        fastest = min(self._rivals & self._calls.keys(), key=lambda label: max(self._rounds[label][0]))
        self._calls[self._again], self._rounds[self._again] = self._calls[fastest], self._rounds[fastest][:1]
        self._rivals, self._repeats = self._rivals | {self._again}, fastest

    @property
    def timings(self) -> dict[str, Timing]:
        """What each took so far, round by round, without the first one, which warms up."""
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
    """Return the exploration that a call belongs to, None if it belongs to none."""
    found = getattr(call, "of", None)
    return found if isinstance(found, Exploration) else None
