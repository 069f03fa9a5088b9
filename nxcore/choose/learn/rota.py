"""Rota: when the calls of a kernel are audited; its problems take turns.

An audit is due some seconds after the last one, whatever others have cost. From then on the kernel's problems
are watched: the one that was audited longest ago has the turn, or after a few calls whichever comes.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Protocol

GAP_S, CALLS = 3.5, 100
"""An audit of a kernel is due so many seconds after the last one, or after as many calls without a pause if
these take longer, whatever audits cost."""

LEAST_S = 0.25
"""The least seconds between two, where the share of time affords more."""

PASSED = 40
"""Its calls, once one is due, after which it needn't be the turn of the problem."""

SHARE = 0.001
"""The share of all audits in the running time, unless they were rarer than ``GAP_S`` and ``CALLS`` say."""

IDLE_S = 60.0
"""Seconds since an audit is due after which a kernel counts as no longer in use."""


class Turn(Protocol):
    """A problem that takes turns; see ``Watch``."""

    @property
    def armed(self) -> bool:
        """Whether its next call is watched."""

    def arm(self) -> None:
        """Watch the next call."""


class Rota:
    """The audits of a kernel in one dtype.

    The next one is due at ``due_s``, by the clock. The last one took ``cost_s``; 0 if there was none.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._passed = clock, 0
        self.due_s, self.cost_s, self._call_s = clock() + GAP_S, 0.0, math.inf
        self._order: dict[int, weakref.ref[Turn]] = {}  # by ``id``, audited longest ago first

    @property
    def due(self) -> bool:
        """Whether an audit is due."""
        return self._clock() >= self.due_s

    @property
    def idle(self) -> bool:
        """Whether the kernel seems to be no longer in use."""
        return self._clock() >= self.due_s + IDLE_S

    @property
    def turns(self) -> list[Turn]:
        """The problems, audited longest ago first."""
        return [turn for ref in tuple(self._order.values()) if (turn := ref()) is not None]

    def enter(self, turn: Turn) -> None:
        """Let a problem take turns: the last one, for now."""
        number, order = id(turn), self._order
        order.pop(number, None)
        order[number] = weakref.ref(turn, lambda _: order.pop(number, None))

    def takes(self, turn: Turn) -> bool:
        """Return whether this call of a watched problem is audited."""
        if not self.due:
            return False
        self._passed += 1
        first = next((one for ref in tuple(self._order.values()) if (one := ref())), turn)
        if first is turn or self._passed >= PASSED:
            self.enter(first)  # it may have had its last call
            return True
        return False

    def audited(self, turn: Turn, cost_s: float, call_s: float, others_s: float) -> None:
        """Note an audit, the seconds of it and of a call, and those of the last audits of other kernels."""
        if id(turn) in self._order:
            self.enter(turn)
        self._passed, self.cost_s, self._call_s = 0, cost_s, min(call_s, self._call_s)
        at_last = max(GAP_S, CALLS * self._call_s)
        self.due_s = self._clock() + max(LEAST_S, min((cost_s + others_s) / SHARE, at_last))

    def left(self) -> float | None:
        """Return the seconds until its problems are to be armed; None if none of them rests."""
        return self.due_s - self._clock() if any(not turn.armed for turn in self.turns) else None

    def arm(self) -> None:
        """Watch the next calls of all problems, if an audit is due."""
        if self.due:
            for turn in self.turns:
                turn.arm()
