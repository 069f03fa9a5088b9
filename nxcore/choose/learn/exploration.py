"""Learning from calls: a problem's kernels are raced beside its calls, for ``CALL_S`` a call.

Torch's own serves all calls until the choice is made. Once the kernels are ready, a call races them before
it, in the program's own thread: torch's threads and a kernel's are then as the program uses them, and none of
its other work is beside them. Most races are over within one call; others go on in later ones, as the budget
allows.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from nxcore.choose.learn.budget import Heat, Pace
from nxcore.measure.lane import Clock

MET = 8
"""Calls after which a problem is explored: a shape that occurs only once is not worth it."""

CALL_S = 0.05
"""The seconds of a race that one call bears; the last step may pass them."""

Call = Callable[..., Any]


class Switch:
    """A callable whose target can be replaced.

    Its owner ``of`` lives as long as ``call``, a ``partial``: its overhead can't be measured in a call of a
    microsecond, while that of a Python function is a tenth of it.
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
    """An object that is notified when an exploration begins to race, and when it ends."""

    def turn(self) -> None:
        """React to the change."""


class Exploration:
    """A problem whose kernels are prepared, and then raced beside its calls, which torch's own serves.

    ``wanted`` is called once the problem was met often enough; ``begin`` or ``end`` must follow later.
    ``pace`` is charged with the race. ``call`` does the caller's work. It is ``engaged`` while it is raced,
    and ``over`` after that. ``stage`` returns how far it is, as words for ``explain``; ``heat`` is the
    problem's share of the program's time.
    """

    def __init__(
        self,
        reference: Call,
        device: torch.device,
        *,
        wanted: Callable[[], None],
        pace: Pace,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self._device, self.clock, self._wanted, self._pace = device, clock, wanted, pace
        self._piece: Callable[[], None] = lambda: None
        self._turn, self._met = threading.Lock(), 0
        self.engaged, self.over, self.heat = False, False, Heat()
        self.stage: Callable[[], str] = lambda: "its kernels are prepared"
        self._watchers: tuple[weakref.ref[Watcher], ...] = ()
        self._beside = Beside(self, reference)
        self.call = self._beside.call

    @property
    def known(self) -> bool:
        """Whether the problem was met often enough."""
        return self._met >= MET

    @property
    def progress(self) -> str:
        """How far it is, as words."""
        if not self.known:
            return f"{self._met} of {MET} calls were met, after which its kernels are prepared"
        return self.stage()

    def watch(self, watcher: Watcher) -> None:
        """Notify ``watcher``, for as long as it lives, when ``engaged`` or ``over`` has changed."""
        with self._turn:
            self._watchers = (*(w for w in self._watchers if w()), weakref.ref(watcher))

    def _tell(self) -> None:
        for known in self._watchers:
            if watcher := known():
                watcher.turn()

    def met(self, times: int = 1) -> None:
        """Count calls; after enough of them the exploration is started."""
        with self._turn:  # otherwise two threads could both reach the count, or neither
            before, self._met = self._met, self._met + times
            wanted = before < MET <= self._met
        if wanted:
            self._tell()
            self._wanted()

    def begin(self, piece: Callable[[], None]) -> None:
        """Race from now on: ``piece`` runs a piece, and ends this after the last one."""
        self._piece, self.engaged = piece, True
        self._tell()

    def end(self) -> None:
        """Race no more; a new plan has the choice."""
        self._piece, self.engaged, self.over = (lambda: None), False, True
        self._tell()

    def race(self) -> None:
        """Run a piece of the race before a call, if the budget allows one."""
        if not self._pace.affords or self._capturing() or not self._turn.acquire(blocking=False):
            return
        try:
            with self._pace.spending():
                self._piece()
        finally:
            self._turn.release()

    def _capturing(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Beside:
    """Torch's own call, beside which a problem is raced; the exploration begins after enough calls."""

    def __init__(self, explored: Exploration, reference: Call) -> None:
        self.explored, self._reference = explored, reference
        # Kept, since a switch's target must outlive calls of it in other threads.
        self._steps = (self._meet, self._race)
        self._switch = Switch(self, self._steps[0])
        self.call = self._switch.call
        explored.watch(self)
        if explored.known:
            self.turn()

    @property
    def over(self) -> bool:
        """Whether the exploration has ended."""
        return self.explored.over

    def turn(self) -> None:
        """Race while the exploration does."""
        self._switch.to(self._steps[1] if self.explored.engaged else self._reference)

    def _meet(self, *args: Any) -> Any:
        began = self.explored.clock()
        result = self._reference(*args)
        self.explored.heat.note(began, self.explored.clock())
        self.explored.met()
        return result

    def _race(self, *args: Any) -> Any:
        self.explored.race()
        return self._reference(*args)


def exploration(call: Call) -> Exploration | None:
    """Return the exploration that a call belongs to, or None."""
    found = getattr(call, "of", None)
    return found.explored if isinstance(found, Beside) else None
