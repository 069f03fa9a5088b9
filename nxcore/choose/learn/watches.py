"""Watches: when each kernel is watched, and how a conviction is handled.

The first calls of every problem are watched. Later a sleeping thread arms the watches of a kernel for a
sample, whenever an audit of it is due; see ``rota``.
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

from nxcore.choose.contenders import PROBLEMS, Choice
from nxcore.choose.learn.budget import Pace, until_the_end
from nxcore.choose.learn.pending import Pending
from nxcore.choose.learn.rota import Rota
from nxcore.choose.learn.watch import Watch
from nxcore.choose.survey import FREE_S
from nxcore.context import REGIME, KernelWarning
from nxcore.spec.problem import Problem

EARLY_S = 0.5
"""Seconds of audits in first calls, after which each problem's first alone is audited: of a network's hundred
problems all begin in one step. In runs for captures, whose results no caller gets, each kernel's first."""

LEAST_S = 0.1
"""The least seconds between two looks at what is to be armed, and until CUDA's outcome of one is read."""

MOST = 1 << 31
"""The most bytes of an audit on the CPU; on CUDA the limit is a quarter of the free memory."""

ROOM = 1 << 28
"""The most bytes that audits may keep until CUDA has completed them."""


class Watches:
    """The watches of a session.

    ``convicted`` is called with a watch and the reason: it puts its kernel into quarantine and drops its
    plans. ``within`` returns the pace of learning, which is charged with the audits. ``wait`` waits some
    seconds, and returns whether the program goes on. During ``asides``, races, kernels are called directly.
    """

    def __init__(
        self,
        convicted: Callable[[Watch, str], None],
        within: Callable[[], Pace],
        *,
        on: bool = True,
        wait: Callable[[float], bool] = until_the_end,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._convicted, self._within, self.on, self.wait, self._clock = convicted, within, on, wait, clock
        self._known: OrderedDict[Any, Watch] = OrderedDict()
        self._rotas: dict[Any, Rota] = {}
        self._pending: deque[Pending] = deque()
        self._early_s = {False: 0.0, True: 0.0}  # by whether it was in a run for a capture
        self._free: dict[torch.device, tuple[int, float]] = {}
        self._lock = threading.RLock()
        self.thread: threading.Thread | None = None
        self.asides, self.convictions = 0, 0

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

    def over(self, choice: Choice, problem: Problem) -> Choice:
        """Return ``choice`` with its call watched; torch's own needs no watch."""
        torchs = choice.backend.name == "torch" or choice.call is problem.spec.reference
        if not self.on or torchs or problem.view:
            return choice
        strict = choice.decision.rule == "pinned"
        key = (problem, choice.decision.chosen, strict)
        with self._lock:
            found = self._known.get(key)
            if found is None or found.planned is not choice.call:
                found = Watch(self, choice.backend, choice.kernel, choice.call, problem, strict=strict)
                self._known[key] = found
                self.rota(found).enter(found)
                if len(self._known) > PROBLEMS:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        return replace(choice, call=found.call)

    def rota(self, watch: Watch) -> Rota:
        """Return the rota of its kernel."""
        with self._lock:
            return self._rotas.setdefault((watch.kernel, watch.problem.dtype), Rota(self._clock))

    def charge(self, watch: Watch, seconds: float) -> None:
        """Count the extra cost of a watched call."""
        self._early_s[REGIME.captured] += seconds * watch.young
        self._within().charge(seconds)

    def audited(self, watch: Watch) -> None:
        """Determine when the next audit of its kernel is due."""
        mine = self.rota(watch)
        others_s = sum(r.cost_s for r in tuple(self._rotas.values()) if r is not mine and not r.idle)
        mine.audited(watch, watch.cost, watch.call_s, others_s)

    def convict(self, watch: Watch, reason: str) -> None:
        """End every watch of this kernel and dtype, and put the kernel into quarantine."""
        with self._lock:
            if watch.reason:
                return
            watch.end(reason)
            for other in self._known.values():
                if other.kernel is watch.kernel and other.problem.dtype == watch.problem.dtype:
                    other.end(reason)
        self.convictions += 1
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

    def early(self, watch: Watch, calls: int) -> bool:
        """Return whether this first call, of so many of its problem, is audited."""
        captured = REGIME.captured
        first = not self.rota(watch).cost_s if captured else calls == 1
        return first or self._early_s[captured] < EARLY_S

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
            self.charge(pending.watch, pending.start.elapsed_time(pending.end) * 1e-3)
            strayed, changed = pending.flags.tolist()
            suspected = (strayed or changed) and not pending.watch.reason
            if suspected and (reason := pending.watch.late(pending, changed=changed)):
                self.convict(pending.watch, reason)

    def rests(self) -> None:
        """Arm a watch that has come to rest again later."""
        with self._lock:
            if self.thread is None and threading.main_thread().is_alive():
                thread = threading.Thread(
                    target=_arm_in_turn, args=(weakref.ref(self), self.wait), name="nxcore watches"
                )
                thread.start()
                self.thread = thread

    @property
    def gap(self) -> float | None:
        """Seconds until watches are to be armed; None if none rests."""
        with self._lock:
            left = min((s for r in self._rotas.values() if (s := r.left()) is not None), default=None)
        if left is None or self._pending:
            return None if left is None else LEAST_S
        return max(LEAST_S, left)

    def owed(self) -> bool:
        """Return whether an audit of any kernel is due, and let the next calls of it be watched."""
        with self._lock:
            due = [rota for rota in self._rotas.values() if rota.due and rota.turns]
            for rota in due:
                rota.arm()
        return bool(due)

    def arm(self) -> bool:
        """Arm the watches of the kernels of which an audit is due; return whether any rests after that."""
        with self._lock:
            for rota in self._rotas.values():
                rota.arm()
            if self._pending:  # it is judged in the next watched call
                self._pending[0].watch.arm()
            if self.gap is None:
                self.thread = None
            return self.thread is not None

    def after_fork(self) -> None:
        """Start again in a forked child, which has neither the thread nor CUDA."""
        self._lock, self.thread, self.asides = threading.RLock(), None, 0
        self._pending.clear()
        for rota in self._rotas.values():
            for watch in rota.turns:
                watch.arm()


def _arm_in_turn(watches: weakref.ref[Watches], wait: Callable[[float], bool]) -> None:
    """Arm one watch after the other; end with the program or the session, or when none is left."""
    while (found := watches()) is not None:
        gap = found.gap or LEAST_S
        del found  # hold no reference to a session that is otherwise unused
        if not wait(gap) or (found := watches()) is None or not found.arm():
            return
        del found
