"""Watches: when each kernel is watched, and how a conviction is handled.

The first calls of every problem are watched. Later a sleeping thread arms one watch after the other for a
sample, as often as audits stay within their share of the time.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from nxcore.choose.contenders import Choice
from nxcore.choose.learn.budget import Pace, until_the_end
from nxcore.choose.learn.watch import ALWAYS, Pending, Watch
from nxcore.context import REGIME, KernelWarning
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem

SHARE = 0.005
"""The share of audits in the time since the first watched call."""

GAP_S = 0.25
"""The least seconds between two samples."""

EARLY_S = 0.5
"""Seconds of all audits after which a problem's second one waits for the share of time."""

TRIED_S = 0.5
"""Seconds of audits in runs for captures beyond the share of time, each kernel's first one left out."""

FREE_S = 1.0
"""Seconds for which the free memory of a device counts: a look at it takes milliseconds."""

MOST = 2**31
"""The most bytes of an audit on the CPU; on CUDA the limit is a quarter of the free memory."""

KEPT = 4096
"""The most watches that are kept; beyond it the least recently planned one is dropped."""

ROOM = 2**28
"""The most bytes that audits may keep until CUDA has completed them."""


class Watches:
    """The watches of a session.

    Parameters
    ----------
    convicted : callable
        Called with a watch and the reason; puts its kernel into quarantine and drops its plans.
    within : callable
        Returns the pace of learning, whose share includes the audits.
    on : bool
        Whether anything is watched.
    wait : callable
        Waits some seconds; returns whether the program goes on.
    pace : Pace, optional
        The audits' own share.

    Attributes
    ----------
    asides : int
        The races under way whose calls go to the kernels directly.
    """

    def __init__(
        self,
        convicted: Callable[[Watch, str], None],
        within: Callable[[], Pace],
        *,
        on: bool = True,
        wait: Callable[[float], bool] = until_the_end,
        pace: Pace | None = None,
    ) -> None:
        self._convicted, self._within, self.on, self.wait = convicted, within, on, wait
        self.pace = pace or Pace(SHARE)
        self._known: OrderedDict[Any, Watch] = OrderedDict()
        self._resting: deque[weakref.ref[Watch]] = deque()
        self._pending: deque[Pending] = deque()
        self._tried, self._tried_s = set[Any](), 0.0
        self._free: dict[torch.device, tuple[int, float]] = {}
        self._lock = threading.RLock()
        self.thread: threading.Thread | None = None
        self.asides = 0

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Watch no call of this block, in any thread: a race times what calls take once a watch rests."""
        with self._lock:
            self.asides += 1
        try:
            yield
        finally:
            with self._lock:
                self.asides -= 1

    def over(self, choice: Choice, problem: Problem, audits: int = 0) -> Choice:
        """Return ``choice`` with its call watched; torch's own needs no watch.

        ``audits`` of the plan have passed in its turns.
        """
        torchs = choice.backend.name == "torch" or choice.call is problem.spec.reference
        if not self.on or torchs or problem.view:
            return choice
        strict = choice.decision.rule == "pinned"
        key = (problem, choice.decision.chosen, strict)
        with self._lock:
            found = self._known.get(key)
            if found is None or found.planned is not choice.call:
                made = choice.backend, choice.kernel, choice.call, problem
                found = self.watch(*made, strict=strict, audits=audits)
                self._known[key] = found
                if len(self._known) > KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        return replace(choice, call=found.call)

    def watch(
        self,
        backend: Backend,
        kernel: Kernel,
        planned: Callable[..., Any],
        problem: Problem,
        *,
        strict: bool = True,
        audits: int = 0,
    ) -> Watch:
        """Return a watch over one planned kernel."""
        self.pace.begin()
        return Watch(self, backend, kernel, planned, problem, strict=strict, audits=audits)

    @property
    def affords(self) -> bool:
        """Whether another audit is within both shares."""
        return self.pace.affords and self._within().affords

    def charge(self, seconds: float) -> None:
        """Count the extra cost of a watched call."""
        self._tried_s += seconds * REGIME.captured
        self.pace.charge(seconds)
        self._within().charge(seconds)

    def convict(self, watch: Watch, reason: str) -> None:
        """End every watch of this kernel and dtype, and put the kernel into quarantine."""
        with self._lock:
            if watch.reason:
                return
            watch.end(reason)
            for other in self._known.values():
                if other.kernel is watch.kernel and other.problem.dtype == watch.problem.dtype:
                    other.end(reason)
        self._convicted(watch, reason)
        instead = (
            "it serves no more calls"
            if watch.strict
            else "torch serves this and all further calls of the problem"
        )
        warnings.warn(
            f"{watch.label}, a kernel of {watch.problem.op!r}, is in quarantine: {reason}; {instead}",
            KernelWarning,
            stacklevel=6,
        )

    def must(self, watch: Watch, calls: int) -> bool:
        """Return whether this call, of so many of its problem, is audited even beyond the share.

        A network has a hundred problems in its first step, and more in a run for a capture, whose result no
        caller gets.
        """
        if not REGIME.captured:
            return calls == 1 or (calls <= ALWAYS and self.pace.spent < EARLY_S)
        kind = (watch.kernel, watch.problem.dtype)
        first = kind not in self._tried
        self._tried.add(kind)
        return first or self._tried_s < TRIED_S

    def room(self, nbytes: int, device: torch.device) -> bool:
        """Return whether an audit may take so many bytes; on CUDA, whether another one may wait too."""
        if device.type != "cuda":
            return nbytes <= MOST
        now = time.monotonic()
        free, asked = self._free.get(device, (0, -FREE_S))
        if now - asked >= FREE_S:
            free, _ = torch.cuda.mem_get_info(device)
            self._free[device] = free, now
        return nbytes <= free // 4 and sum(p.nbytes for p in tuple(self._pending)) < ROOM

    def later(self, pending: Pending) -> None:
        """Keep an audit until CUDA has completed it."""
        self._pending.append(pending)

    def harvest(self) -> None:
        """Judge the audits that CUDA has completed, in order; wait for none."""
        while self._pending and self._pending[0].end.query():
            try:
                pending = self._pending.popleft()
            except IndexError:  # another thread took it
                return
            self.charge(pending.start.elapsed_time(pending.end) * 1e-3)
            strayed, changed = pending.flags.tolist()
            suspected = (strayed or changed) and not pending.watch.reason
            if suspected and (reason := pending.watch.late(pending, changed=changed)):
                self.convict(pending.watch, reason)

    def rests(self, watch: Watch) -> None:
        """Arm ``watch`` again later."""
        with self._lock:
            self._resting.append(weakref.ref(watch))
            if self.thread is None and threading.main_thread().is_alive():
                thread = threading.Thread(
                    target=_arm_in_turn, args=(weakref.ref(self), self.wait), name="nxcore watches"
                )
                thread.start()
                self.thread = thread

    @property
    def gap(self) -> float:
        """Seconds until the next sample may be taken."""
        with self._lock:
            first = next((w for r in self._resting if (w := r()) is not None), None)
        ahead = first.cost if first is not None else 0.0
        return max(GAP_S, self.pace.left(ahead), self._within().left(ahead))

    def arm(self) -> bool:
        """Arm the watch that has rested longest; return whether any rests after that."""
        with self._lock:
            while self._resting:
                if (watch := self._resting.popleft()()) is not None:
                    watch.arm()
                    break
            if not self._resting:
                self.thread = None
                return False
            return True

    def after_fork(self) -> None:
        """Start again in a forked child, which has neither the thread nor CUDA."""
        self._lock, self.thread, self.asides = threading.RLock(), None, 0
        self._pending.clear()
        self.pace = self.pace.anew()
        while self._resting:
            if (watch := self._resting.popleft()()) is not None:
                watch.arm()


def _arm_in_turn(watches: weakref.ref[Watches], wait: Callable[[float], bool]) -> None:
    """Arm one watch after the other; end with the program or the session, or when none is left."""
    while (found := watches()) is not None:
        gap = found.gap
        del found  # hold no reference to a session that is otherwise unused
        if not wait(gap) or (found := watches()) is None:
            return
        if found.affords and not found.arm():
            return
        del found
