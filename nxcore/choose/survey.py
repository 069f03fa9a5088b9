"""Survey: unknown problems of a GPU, measured by a process beside the program.

The program's interpreter is left alone: to verify and race a problem takes one some 70 ms. The process leaves
its decisions on disk, where the program reads them. Both share the device, which a program that waits for the
host leaves idle for most of the time; of one that fills it, races take a share.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from nxcore.choose.process import Answer, Task
from nxcore.choose.turns import Turns
from nxcore.choose.workers import Workers
from nxcore.spec.problem import Problem
from nxcore.store import transfer

_log = logging.getLogger(__name__)

DEVICES = ("cuda",)
"""The types of devices whose problems are measured beside the program: processors have several programs."""

RACE, REST = 0.4, 0.1
"""The shares of a race's seconds, and of the others of a measurement, that are taken to delay a program which
keeps the device at work; one that does so for a part of the time is delayed by that part of them.

Plain search steps, which wait for the host, took 1.07 times as long beside a process that raced for 0.6 of
its time, and steps that fill an H100 1.17 times beside one that raced for a quarter.
"""

PAYS, PAID_S = 0.2, 1.0
"""The share of the time between two calls which saves enough for a process without a budget, and for how many
seconds it does. Steps that fill a device take 1.17 times as long beside it, by the records of ``RACE``.
"""

FEW = 8
"""The problems that are measured in a call sooner than a process is started for them."""

ROOM, COPIES = 1 << 32, 32
"""Free bytes of a device that a process needs, and for each byte of the problem's tensors: four times what
its context and a race take, since the program may come to need more at any time."""

FREE_S = 1.0
"""Seconds for which the free memory of a device counts: a look at it takes milliseconds."""


class UnmeasuredError(Exception):
    """A call can't be captured yet, since problems of it are being measured; a later one can be."""


Done = Callable[[str], None]


class Budget(Protocol):
    """The limits of what happens beside the program."""

    @property
    def affords(self) -> bool:
        """Whether the seconds spent are within the limits."""

    def charge(self, seconds: float) -> None:
        """Count seconds."""


class Survey:
    """Has problems measured, each of them once a process.

    Parameters
    ----------
    surveyor : Workers, optional
        The processes that measure; without them no problem is taken.
    changed : callable
        Called once all problems are measured: plans must be made again.

    Attributes
    ----------
    taken, open : int
        How many problems it has taken, and how many of them aren't measured yet.
    left_to_calls : int
        How many of the next problems a call is to measure itself.
    turns : Turns
        Gives the process the device, between calls that save time.
    captured : set of Problem
        The problems that a capture requires.
    stays : dict
        Why torch serves problems of which no kernel could be raced.
    """

    def __init__(self, surveyor: Workers | None, changed: Callable[[], None]) -> None:
        self._surveyor, self._changed = surveyor, changed
        self._asked: dict[Problem, list[Done] | None] = {}  # None where it has been answered
        self._lock = threading.Lock()
        self.stays: dict[Problem, str] = {}
        self.captured = set[Problem]()
        self._prepared = False
        self._paid, self._before = -PAID_S, 0.0  # when that was, and the last call that saves time
        self._free: dict[torch.device, tuple[int, float]] = {}  # the bytes, and when that was
        self.turns, self.left_to_calls = Turns(lambda: self.paid), 0
        if surveyor is not None:
            surveyor.heard = self.turns.heard

    def keep_to(self, budget: Callable[[], Budget]) -> None:
        """Measure within a budget."""
        self._budget = budget
        if self._surveyor is not None:
            self._surveyor.affords = lambda: self.paid or budget().affords

    @property
    def paid(self) -> bool:
        """Whether the program saves more than the process costs it."""
        return time.monotonic() - self._paid < PAID_S

    def pay(self, saved: float, left: float = 0.0) -> None:
        """Note a call that takes so many seconds less than torch's own, besides those of a turn."""
        now = time.monotonic()
        if saved >= PAYS * (now - self._before - left):
            self._paid = now
        self._before = now

    @property
    def taken(self) -> int:
        """See the class."""
        return len(self._asked)

    @property
    def open(self) -> int:
        """See the class."""
        return sum(known is not None for known in list(self._asked.values()))

    def takes(self, problem: Problem) -> bool:
        """Return whether a problem is or can be measured here: not one that was measured before."""
        if self._surveyor is None or problem.device.type not in DEVICES or problem.writes or problem.view:
            return False
        if problem in self._asked:
            return self._asked[problem] is not None
        return self._surveyor.most > 0 and not torch.are_deterministic_algorithms_enabled()

    def ask(self, problem: Problem, done: Done | None = None, heat: float = 0.0) -> None:
        """Have a problem measured; call ``done`` with why that failed, or an empty string.

        That is in another thread, or here where the problem can't be measured.
        """
        listeners = [done] if done else []
        with self._lock:
            known = self._asked.get(problem)
            if known is not None:
                known += listeners
                return
            self._asked[problem] = listeners
        if self._surveyor is None or not self._room(problem):
            self._answered(problem, Answer("the device has too little free memory"))
            return
        _log.info("survey: %s is measured beside the program", problem)
        request = {
            "index": problem.device.index or 0,
            "shipped": str(transfer.SHIPPED),
            "modes": modes(),
        }
        self._surveyor.give(problem, request, functools.partial(self._answered, problem), heat)

    def leaves_to_call(self) -> bool:
        """Return whether a call is to measure another problem itself, and count that one."""
        self.left_to_calls -= 1
        return self.left_to_calls >= 0

    def withdraw(self) -> bool:
        """Take back the open problems if they are few and none was begun; return whether they are."""
        if not 0 < self.open <= FEW or self._surveyor is None or not self._surveyor.withdrawn():
            return False
        with self._lock:
            before, self._asked = self._asked, dict.fromkeys(self._asked)
        for done in (done for listeners in before.values() for done in listeners or ()):
            done("a call measures it")
        return True

    def prepare(self, device: torch.device) -> None:
        """Start the processes before there is a problem for them: that takes them some seconds."""
        surveyor, first, self._prepared = self._surveyor, not self._prepared, True
        if surveyor is not None and surveyor.most and first and not self._asked and device.type in DEVICES:
            request = {"prepare": device.index or 0}
            for _ in range(surveyor.most):
                surveyor.add(Task(request, lambda answer: self._budget().charge(REST * answer.seconds)))

    def after_fork(self) -> None:
        """Take no problem in a forked child, whose workers are its parent's."""
        self._surveyor, self._asked, self._lock = None, {}, threading.Lock()

    def _room(self, problem: Problem) -> bool:
        """Return whether a device has memory for a race."""
        if problem.device.type != "cuda":
            return True
        now = time.monotonic()
        free, asked = self._free.get(problem.device, (0, -FREE_S))
        if now - asked >= FREE_S:
            free = torch.cuda.mem_get_info(problem.device)[0]
            self._free[problem.device] = free, now
        held = sum(t.numel() * t.dtype.itemsize for t in problem.tensors)
        return free > ROOM + COPIES * held

    def _answered(self, problem: Problem, answer: Answer) -> None:
        if not self.paid:
            cost = RACE * answer.raced + REST * max(0.0, answer.seconds - answer.raced)
            self._budget().charge(cost * (1.0 if answer.busy is None else answer.busy))
        if answer.why:
            _log.warning("survey: %s: %s", problem, answer.why)
        if answer.stays:
            self.stays[problem] = answer.stays
        with self._lock:
            listeners, self._asked[problem] = self._asked.get(problem) or [], None
            last = not self.open
        for done in listeners:
            done(answer.why)
        if last:
            self._changed()


def modes() -> dict[str, Any]:
    """Return the settings of torch that its own speed depends on."""
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "benchmark": torch.backends.cudnn.benchmark,
    }


def adopt(found: dict[str, Any]) -> None:
    """Apply settings of torch, as ``modes`` returned them."""
    torch.set_float32_matmul_precision(found["matmul"])
    torch.backends.cudnn.allow_tf32 = found["cudnn_tf32"]
    torch.backends.cudnn.benchmark = found["benchmark"]
