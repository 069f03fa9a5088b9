"""Watch: what a kernel that serves does after it was verified.

A plan is watched in the first calls of its problem, and in a sample of later ones; in between its calls go to
the kernel directly. A watched call is looked at for its form: type, device, dtype, shape, strides, whose
memory the result lies in, and what belongs to the whole process. Some watched calls are audited: their values
are compared with the reference's. A suspicion is confirmed on copies of the inputs before a kernel is
convicted. Then the kernel is put into quarantine, and its plans are dropped.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nxcore.choose.learn.exploration import Switch
from nxcore.errors import VerificationError
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem, leaves
from nxcore.trust.form import form, meet, misformed, spans, twin
from nxcore.trust.state import State, disturbance
from nxcore.trust.suspicion import INPUTS, confirmed, differ, out_of, restore
from nxcore.trust.truth import strays, without_out

FIRST = 16
"""Calls of a problem that are watched from its first one on."""

AUDITED = (1, 2, 4, 8, 16)
"""Those of them that are audited."""

ALWAYS = 2
"""The last of these that is audited whatever the share of time affords."""

SAMPLE = 2
"""Calls of a later sample: one that is audited, and one whose memory is held against that one's."""

HELD = 2**22
"""Bytes of a result up to which it is kept until the next watched call; the caller is given a copy."""

COPIES = 12
"""Memory that an audit takes, in multiples of the problem's own."""

MOST = 2**31
"""Bytes that an audit may take on the CPU; on CUDA it is a quarter of what is free."""


class Owner(Protocol):
    """Decides when audits are affordable, and what follows from a conviction; see ``Watches``."""

    @property
    def affords(self) -> bool:
        """Whether an audit is within its share of the time."""

    @property
    def room(self) -> bool:
        """Whether another audit may wait for CUDA."""

    def charge(self, seconds: float) -> None:
        """Count what a watched call cost beyond the call."""

    def later(self, pending: Pending) -> None:
        """Keep an audit until CUDA has come to it."""

    def harvest(self) -> None:
        """Judge the audits that CUDA has come to."""

    def rests(self, watch: Watch) -> None:
        """Arm ``watch`` again in time."""

    def convict(self, watch: Watch, reason: str) -> None:
        """Put the kernel into quarantine."""


@dataclass(frozen=True)
class Pending:
    """An audit whose outcome CUDA has yet to tell.

    Attributes
    ----------
    watch : Watch
        Whose it is.
    own : tuple
        Copies of the arguments, from before the call.
    result : Any
        What the kernel returned; the caller has a copy.
    flags : Tensor
        Of two bools, in pinned memory: the result strays, an input was changed.
    start, end : torch.cuda.Event
        Around the audit.
    """

    watch: Watch
    own: tuple[Any, ...]
    result: Any
    flags: Tensor
    start: Any
    end: Any

    @property
    def nbytes(self) -> int:
        """What is kept for it."""
        return sum(t.nbytes for t in leaves((self.own, self.result)))


class Watch:
    """A planned kernel whose calls are watched at first, and now and then.

    Parameters
    ----------
    owner : Owner
        Keeps the share of time, and convicts.
    backend, kernel
        What is watched.
    planned : callable
        The kernel, planned for the problem.
    problem : Problem
        What its calls are of.
    strict : bool
        A conviction raises; else the reference's result is returned in place of the wrong one.

    Attributes
    ----------
    call : callable
        Takes the operator's arguments, all positional.
    reason : str
        Why it was convicted; empty as long as it wasn't.
    cost : float
        Seconds of the last audit, the call itself left out.
    """

    def __init__(
        self,
        owner: Owner,
        backend: Backend,
        kernel: Kernel,
        planned: Callable[..., Any],
        problem: Problem,
        *,
        strict: bool,
    ) -> None:
        self._owner, self.backend, self.kernel, self.planned = owner, backend, kernel, planned
        self.problem, self.strict, self.reason, self.cost = problem, strict, "", 0.0
        self._calls, self._audits, self._left, self._sampled, self._able = 0, 0, FIRST, False, True
        self._like: Any = None
        self._shared: frozenset[int] = frozenset()  # results that lie in an input, as the reference's do
        self._last: list[tuple[Any, tuple[int, int]]] = []  # storages of the last result, and where it lies
        self._lock = threading.Lock()
        # Kept: what a switch goes to must outlive the call that another thread is in.
        self._steps = (self._watched, self._instead)
        self._switch = Switch(self, self._steps[0])
        self.call = self._switch.call

    @property
    def armed(self) -> bool:
        """Whether the next call is watched."""
        return self._switch.target is self._steps[0]

    def arm(self) -> None:
        """Watch the next calls: a sample."""
        if not self.reason:
            self._left, self._sampled = SAMPLE, True
            self._switch.to(self._steps[0])

    def rest(self) -> None:
        """Let calls go to the kernel directly until the next sample."""
        self._last = []
        self._switch.to(self.planned)
        self._owner.rests(self)

    def end(self, reason: str) -> None:
        """Serve all calls by the reference from now on, or refuse them where it is strict."""
        self.reason = self.reason or reason
        self._last = []
        self._switch.to(self._steps[1])

    def _watched(self, *args: Any) -> Any:
        if self._capturing() or not self._lock.acquire(blocking=False):
            return self.planned(*args)
        try:
            self._owner.harvest()
            if self.reason:
                return self._instead(*args)
            self._calls += 1
            result = self.inspected(args, audit=self._due)
            self._left -= 1
            if not self._left and not self.reason:
                self.rest()
            return result
        finally:
            self._lock.release()

    @property
    def _due(self) -> bool:
        """Whether this watched call is to be audited."""
        if self._sampled:
            return self._left == SAMPLE
        return self._audits < bisect(AUDITED, self._calls) and (self._calls <= ALWAYS or self._owner.affords)

    def _capturing(self) -> bool:
        return self.problem.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _instead(self, *args: Any) -> Any:
        if self.strict:
            raise VerificationError(f"{self.label}, a kernel of {self.problem.op!r}: {self.reason}")
        return self.problem.spec.reference(*args)

    @property
    def label(self) -> str:
        """The kernel's name."""
        return self.backend.label(self.kernel)

    def inspected(self, args: tuple[Any, ...], *, audit: bool) -> Any:
        """Run a call and look at what it does; the caller gets a result in memory of its own.

        Raises
        ------
        VerificationError
            If the kernel is convicted, and the watch is strict.
        """
        device, began = self.problem.device, time.perf_counter()
        own = self._copies(args) if audit and self._able else None
        self._audits += own is not None
        before = State.now(device)
        entered = time.perf_counter()
        result = self.planned(*args)
        left = time.perf_counter()
        try:
            given = own or args
            disturbed = disturbance(
                before, device, lambda: self.planned(*twin(given)), lambda: self._reference(twin(given))
            )
            with torch.no_grad():
                found, result = self._looked_at(args, own, result)
            found = self._put(found or disturbed)
        except Exception as error:  # noqa: BLE001  such as want of memory: the look failed, not the kernel
            found, self._able = "", self._able and not isinstance(error, torch.OutOfMemoryError)
            before.restore(device, own=True)
        self.cost = time.perf_counter() - left + entered - began
        self._owner.charge(self.cost)
        if found:
            self._owner.convict(self, found)
            if self.strict:
                self._instead(*args)
        return result

    def look(self, args: tuple[Any, ...], result: Any) -> Any:
        """Look at the form of a result, and return it in memory of its own.

        Raises
        ------
        VerificationError
            If the kernel is convicted, for this result or before.
        """
        began = time.perf_counter()
        if not self.reason:
            with torch.no_grad():
                reason, _ = self._form(args, result)
                if not reason:
                    self._hold(result)
                    result = self._apart(result)
            self._owner.charge(time.perf_counter() - began)
            if not reason:
                return result
            self._owner.convict(self, self._put(reason))
        return self._instead(*args)

    def late(self, pending: Pending, *, changed: bool) -> str:
        """Return why the kernel is convicted for a call of before; empty if it isn't."""
        try:
            with torch.no_grad():
                spec = self.problem.spec
                found = confirmed(self.planned, spec, pending.own, pending.result, changed=changed)
                return self._put(found)
        except Exception:  # noqa: BLE001  such as want of memory: the look failed, not the kernel
            return ""

    def _copies(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return copies of the arguments; None where an audit would take too much memory."""
        need = COPIES * sum(t.nbytes for t in leaves(args))
        if self.problem.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.problem.device)
            if need > free // 4 or not self._owner.room:
                return None
        elif need > MOST:
            return None
        try:
            copies: tuple[Any, ...] = twin(args)
        except Exception:  # noqa: BLE001  such as want of memory: no reason for a call to fail
            return None
        return copies

    def _looked_at(self, args: tuple[Any, ...], own: tuple[Any, ...] | None, result: Any) -> tuple[str, Any]:
        """Return why the kernel is convicted, empty if it isn't, and what the caller is to get."""
        spec = self.problem.spec
        reason, native = self._form(args, result, own)
        malformed = bool(reason)
        if not reason and own is not None:
            native = self._reference(own) if native is None else native
            strayed = strays(spec, self._inputs(own), native, result)
            flags = torch.stack([strayed, differ(spec, args, own)])
            if flags.is_cuda:
                self._later(own, result, flags)
            elif bool(flags.any()):
                reason = confirmed(self.planned, spec, own, result, changed=bool(flags[1]))
        if reason:
            if own is not None and (malformed or reason == INPUTS):
                restore(args, own)
            native = self._reference(own or args) if native is None else native
            out = out_of(spec, args)
            return reason, native if out is None else out.copy_(native)
        self._hold(result)
        return "", self._apart(result)

    def _put(self, reason: str) -> str:
        return f"wrong in a call on {self.problem}: {reason}" if reason else ""

    def _inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return without_out(self.problem.spec, args)

    def _form(
        self, args: tuple[Any, ...], result: Any, own: tuple[Any, ...] | None = None
    ) -> tuple[str, Any]:
        """Return what is wrong with a result's form, empty if nothing is; and torch's own, where it ran."""
        out = out_of(self.problem.spec, args)
        if out is not None:
            same = isinstance(result, Tensor) and result.data_ptr() == out.data_ptr()
            return misformed(result, form(out)) if same else "out must be what is written and returned", None
        native = None
        if self._like is None:
            native = self._reference(own or args)
        reason = misformed(result, self._like) or self._misplaced(args, result)
        if reason and native is None:  # torch's own may be another where numbers or inputs are others
            native = self._reference(own or args)
            reason = misformed(result, self._like) or self._misplaced(args, result)
        return reason, native

    def _reference(self, args: tuple[Any, ...]) -> Any:
        """Run the reference, and remember the form of its result and which of it lies in an input."""
        given = self._inputs(args)
        native = self.problem.spec.reference(*given)
        inputs = spans(list(leaves(given)))
        self._like = form(native)
        self._shared |= {i for i, t in enumerate(leaves(native)) if meet(spans([t]), inputs)}
        return native

    def _misplaced(self, args: tuple[Any, ...], result: Any) -> str:
        inputs = spans(list(leaves(self._inputs(args))))
        for i, tensor in enumerate(leaves(result)):
            mine = spans([tensor])
            if i not in self._shared and meet(mine, inputs):
                return "a result must not share memory with an input"
            if i not in self._shared and meet(mine, [at for held, at in self._last if _alive(held)]):
                return "a result must not share memory with that of the call before"
        return ""

    def _alone(self, result: Any) -> list[Tensor]:
        """Return the results that must lie in memory of their own."""
        if self.problem.writes:
            return []
        return [t for i, t in enumerate(leaves(result)) if i not in self._shared and t.numel()]

    def _hold(self, result: Any) -> None:
        """Keep a result's memory, so that nothing else is given it; of a large one, know whether it lives."""
        self._last = [
            (s if s.nbytes() <= HELD else StorageWeakRef(s), spans([t])[0])
            for t in self._alone(result)
            for s in [t.untyped_storage()]
        ]

    def _apart(self, result: Any) -> Any:
        """Return a copy of what is held: a buffer that is used again is not the caller's."""
        known = {id(t): twin(t) for t in self._alone(result) if t.untyped_storage().nbytes() <= HELD}

        def copied(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return tuple(map(copied, value))
            return known.get(id(value), value)

        return copied(result)

    def _later(self, own: tuple[Any, ...], result: Any, flags: Tensor) -> None:
        """Let the outcome of an audit be known once CUDA has come to it."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        pinned = torch.empty(2, dtype=torch.bool, pin_memory=True).copy_(flags, non_blocking=True)
        end.record()
        self._owner.later(Pending(self, own, result, pinned, start, end))


def _alive(held: Any) -> bool:
    return not (isinstance(held, StorageWeakRef) and held.expired())
