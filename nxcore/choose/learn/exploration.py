"""Learning from calls: a problem's kernels are raced in its own calls, a piece a call.

For ``PIECE_S`` such a call runs steps of the race on its arguments, in the program's own thread: torch's
threads and a kernel's are then as the program uses them, and none of its other work is beside them. The
result of the last step is the caller's. So a call that takes long bears one step, and costs no more than the
difference to torch's time. Torch's own serves until all candidates are ready, while the times are judged,
and while the budget is used up.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from nxcore.choose.learn.budget import Heat, Pace
from nxcore.measure.lane import Clock

MET = 8
"""Calls after which a problem is explored: a shape that occurs only once is not worth it."""

PIECE_S = 1e-3
"""The seconds of a race that one call bears; the last step may pass them."""

Call = Callable[..., Any]

UNSERVED = object()
"""In place of a result: the call isn't served yet."""


class Piece(NamedTuple):
    """The result of a piece of a race.

    Attributes
    ----------
    over : bool
        Whether the race is over.
    result : Any
        The result of the last step, or ``UNSERVED``.
    own_s : float
        The seconds that torch's own call takes.
    """

    over: bool
    result: Any = UNSERVED
    own_s: float = 0.0


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
    """An object that is notified when an exploration begins to race, and when it rests."""

    def turn(self) -> None:
        """React to the change."""


class Exploration:
    """A call in which several kernels are raced, piece by piece, until the fastest is clear.

    Parameters
    ----------
    reference : callable
        torch's own: serves all calls that aren't served by a step of the race.
    device : torch.device
        The device that does the work.
    wanted : callable
        Called once the problem was met often enough; ``begin`` or ``end`` must follow later.
    look : callable
        Called when the race is over; ``end`` must follow.
    pace : Pace
        Charged with the cost of the race.
    rests : callable
        Called after a piece that used up the budget; ``resume`` must follow.
    clock : callable
        Returns nanoseconds; a test may replace it.

    Attributes
    ----------
    call : callable
        Does the caller's work.
    over : bool
        Whether the exploration has ended.
    stage : callable
        Returns how far it is, as words for ``explain``.
    heat : Heat
        The problem's share of the program's time.
    """

    def __init__(
        self,
        reference: Call,
        device: torch.device,
        *,
        wanted: Callable[[], None],
        look: Callable[[], None],
        pace: Pace,
        rests: Callable[[], None],
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self.reference, self.device, self.clock = reference, device, clock
        self._wanted, self._look, self.pace, self._rests = wanted, look, pace, rests
        self._piece: Callable[[tuple[Any, ...]], Piece] = lambda _: Piece(over=True)
        self._turn, self._met = threading.Lock(), 0
        self.over, self.heat = False, Heat()
        self.stage: Callable[[], str] = lambda: "its kernels are prepared"
        # Kept, since a switch's target must outlive calls of it in other threads.
        self._steps = (self._meet, self._race)
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

    @property
    def awaited(self) -> tuple[Exploration, ...]:
        """Itself while torch serves until it begins to race, or ends."""
        return (self,) if self.serve is self.reference and not self.over else ()

    @property
    def progress(self) -> str:
        """How far it is, as words."""
        if not self.known:
            return f"{self._met} of {MET} calls were met, after which its kernels are prepared"
        return self.stage()

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

    def begin(self, piece: Callable[[tuple[Any, ...]], Piece]) -> None:
        """Race from now on: ``piece`` runs a piece on a call's arguments."""
        self._piece = piece
        self.resume()

    def resume(self) -> None:
        """Continue to race."""
        self._go_to(self._steps[1])

    def end(self, call: Call) -> None:
        """Let ``call`` serve all calls from now on."""
        self.over = True
        self._go_to(call)
        self._piece = lambda _: Piece(over=True)

    def advance(self, args: tuple[Any, ...], *, serves: bool = True) -> Any:
        """Race a piece on a call's arguments, if it is time for one; return its result, or ``UNSERVED``.

        ``serves`` is whether the call can be served by a step; otherwise all of the piece is charged.
        """
        if self._capturing() or not self._turn.acquire(blocking=False):
            return UNSERVED
        try:
            if self.serve is not self._steps[1]:
                return UNSERVED
            with self.pace.spending() as cost:
                piece = self._piece(args)
                if serves and piece.result is not UNSERVED:
                    cost.saved = piece.own_s
            if piece.over:
                self._go_to(self.reference)
                self._look()
            elif not self.pace.affords:
                self._go_to(self.reference)
                self._rests()
            return piece.result
        finally:
            self._turn.release()

    def _meet(self, *args: Any) -> Any:
        began = self.clock()
        result = self.reference(*args)
        self.heat.note(began, self.clock())
        self.met()
        return result

    def _race(self, *args: Any) -> Any:
        result = self.advance(args)
        return self.reference(*args) if result is UNSERVED else result

    def _capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def exploration(call: Call) -> Exploration | None:
    """Return the exploration that a call belongs to, or None."""
    found = getattr(call, "of", None)
    return found if isinstance(found, Exploration) else None
