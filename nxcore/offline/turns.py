"""Turns: which problem is measured next, while workers compile the kernels of those behind it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from nxcore.choose.ahead import Name, Orders, pays, tasks
from nxcore.choose.shortlist import EVERY, Shortlist
from nxcore.choose.tuner import Tuner
from nxcore.observe.bar import Advance
from nxcore.spec import tally
from nxcore.spec.problem import Problem

TOGETHER = 64
"""The most problems whose kernels are compiled before the first of them is measured."""

POLL_S = 1.0
"""Seconds after which a wait for workers looks at the time."""

Of = TypeVar("Of")


@dataclass(frozen=True, slots=True)
class Turn(Generic[Of]):
    """Something to measure.

    Attributes
    ----------
    of : Any
        What the problem belongs to.
    problem : Problem, optional
        The problem, if its kernels are to be raced.
    after : str
        Of two with the same text, the first is measured first.
    missing : tuple of str
        The kernels that must be compiled.
    shortlist : Shortlist
        Those of them that are raced.
    needs : frozenset
        The tasks of workers that it waits for.
    """

    of: Of
    problem: Problem | None = None
    after: str = ""
    missing: tuple[str, ...] = ()
    shortlist: Shortlist = EVERY
    needs: frozenset[Name] = field(default_factory=frozenset)

    @property
    def alone(self) -> bool:
        """Whether nothing may be compiled while it is measured: it takes the processor itself."""
        return self.problem is not None and self.problem.device.type == "cpu"


class Turns(Generic[Of]):
    """The order of measuring: each problem has its turn once its kernels are compiled.

    On a GPU workers compile for those behind while one is measured; whatever is ready goes first. On a CPU
    they compile for ``TOGETHER`` problems, which are measured then.

    Parameters
    ----------
    tuner : Tuner
        Has the workers, and knows what must be compiled.
    turns : iterable of Turn
        Read as they are needed.
    ends : float
        The time, by ``time.monotonic``, from which on nothing is begun.
    advance : callable
        Called after each task of a worker that was waited for.
    """

    def __init__(
        self,
        tuner: Tuner,
        turns: Iterable[Turn[Of]],
        *,
        ends: float = math.inf,
        advance: Advance = lambda *_: None,
    ) -> None:
        self._tuner, self._turns, self._ends, self._advance = tuner, iter(turns), ends, advance
        self._orders = Orders(tuner.workers) if tuner.workers is not None and pays(tuner) else None
        self._waiting: list[Turn[Of]] = []

    def __iter__(self) -> Iterator[Turn[Of]]:
        """Yield the turns until all had theirs or the time is over."""
        while time.monotonic() < self._ends:
            self._fill()
            if not self._waiting:
                return
            turn = self._ready()
            while turn is None and time.monotonic() < self._ends:
                self._wait()
                turn = self._ready()
            if turn is not None:
                self._waiting.remove(turn)
                yield turn

    def _fill(self) -> None:
        """Read turns, and order what they need; none behind one that needs the whole processor."""
        if any(turn.alone for turn in self._waiting):
            return
        while len(self._waiting) < (TOGETHER if self._orders else 1):
            if (turn := next(self._turns, None)) is None:
                return
            self._waiting.append(self._ordered(turn))

    def _ordered(self, turn: Turn[Of]) -> Turn[Of]:
        if turn.problem is None or self._orders is None:
            return turn
        labels = [label for label in turn.missing if label not in turn.shortlist.pruned]
        wanted = tasks(self._tuner, turn.problem, labels)
        self._orders.place(wanted)
        return replace(turn, needs=frozenset(wanted))

    def _ready(self) -> Turn[Of] | None:
        """Return the first turn that waits for no task, and for none before it with the same text."""
        if self._orders is None:
            return self._waiting[0]
        while self._orders.take(0.0) is not None:
            continue
        held: set[str] = set()
        if self._orders.open and any(turn.alone for turn in self._waiting):
            return None
        for turn in self._waiting:
            if turn.after not in held and not turn.needs & self._orders.open:
                if turn.needs:
                    self._tuner.gate.quarantine.read()  # a kernel that ended a worker would end the program
                return turn
            held.add(turn.after)
        return None

    def _wait(self) -> None:
        if self._orders is None:
            raise AssertionError("nothing is waited for without workers")
        with tally.spent("compile wait"):
            what = self._orders.take(max(0.0, min(POLL_S, self._ends - time.monotonic())))
        if what is not None:
            self._advance(what, self._orders.done, self._orders.placed)
