"""Watch: checks of a verified kernel's calls while it serves.

A plan is watched in the first calls of its problem, and where an audit of its kernel is due (see ``rota``);
all other calls go to the kernel directly. A watched call is checked for its form: type, device, dtype,
shape, strides, the memory of the result, and the state of the process. Some watched calls are audited: their
values are compared with the reference's. A suspicion is confirmed on copies of the inputs before the kernel
is convicted. A convicted kernel is put into quarantine, and its plans are dropped.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nxcore.choose.learn.exploration import Switch
from nxcore.choose.learn.pending import Pending
from nxcore.choose.learn.rota import SHARE
from nxcore.context import REGIME, capturing
from nxcore.errors import FOREIGN, VerificationError
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem, leaves
from nxcore.trust.distance import strays
from nxcore.trust.form import exchanged, form, meet, misformed, spans, twin
from nxcore.trust.memory import bits, same
from nxcore.trust.rows import Rows, rows
from nxcore.trust.state import State, disturbance
from nxcore.trust.sums import Sums, sums
from nxcore.trust.suspicion import INPUTS, apart, confirmed, differ, out_of, restore, versions
from nxcore.trust.truth import without_out

if TYPE_CHECKING:
    from nxcore.choose.learn.watches import Watches

FIRST = 16
"""The number of first calls of a problem that are watched; the first, and each power of two, is audited."""

SAMPLE = 2
"""Calls of a later sample: one is audited, and the memory of the other is compared with its memory."""

HELD = 1 << 22
"""The largest result, in bytes, that is kept until the next watched call; the caller gets a copy."""

COPIES = 12
"""Memory of an audit, in multiples of the problem's own; a comparison with torch's own takes a third."""

_drawn = random.SystemRandom().randrange  # the program's own generator stays as it is


class Watch:
    """A planned kernel whose first calls are watched, and samples of later ones.

    Its ``owner`` determines which calls are audited. ``call`` takes the operator's arguments, all positional.
    It is ``young`` until its first calls are over. ``cost`` and ``call_s`` are seconds of the last watched
    call, without the call itself, and of the shortest call. ``reason`` is why it was convicted. If it is
    ``strict``, that raises; else the reference's result replaces the wrong one.
    """

    def __init__(
        self,
        owner: Watches,
        backend: Backend,
        kernel: Kernel,
        planned: Callable[..., Any],
        problem: Problem,
        *,
        strict: bool,
    ) -> None:
        self._owner, self.backend, self.kernel, self.planned = owner, backend, kernel, planned
        self.problem, self.strict, self.reason, self.cost = problem, strict, "", 0.0
        self._calls, self._audits, self._left, self.young, self._able = 0, 0, FIRST, True, True
        self._graded, self._whole_s = True, 0.0  # when a result that depends on much is compared as a whole
        self.call_s, self._rota = math.inf, owner.rota(self)
        self._like: Any = None
        self._shared: frozenset[int] = frozenset()  # results that are views of inputs, as the reference's
        self._last: list[tuple[Any, tuple[int, int]]] = []  # storages and addresses of the last result
        self._lock = threading.Lock()
        self._steps = (self._watched, self._instead)  # kept, since other threads may still call a target
        self._switch = Switch(self, self._steps[0])
        self.call = self._switch.call

    @property
    def armed(self) -> bool:
        """Whether the next call is watched."""
        return self._switch.target is self._steps[0]

    def arm(self) -> None:
        """Watch the next calls, until one is audited or no audit is due any more."""
        if not self.reason:
            self._switch.to(self._steps[0])

    def rest(self) -> None:
        """Let calls go to the kernel directly until the next sample."""
        self._last, self.young = [], False
        self._switch.to(self.planned)
        self._owner.rests()

    def end(self, reason: str) -> None:
        """Let the reference serve all calls from now on, or raise where it is strict."""
        self.reason, self._last = self.reason or reason, []
        self._switch.to(self._steps[1])

    def _watched(self, *args: Any) -> Any:
        if self._owner.asides or capturing(self.problem) or not self._lock.acquire(blocking=False):
            return self.planned(*args)
        try:
            self._owner.harvest()
            if self.reason:
                return self._instead(*args)
            self._calls += 1
            if (audit := self._due) and not self.young:
                self._left = SAMPLE
            if not self._left:
                if not self._rota.due:
                    self.rest()
                return self.planned(*args)
            result = self.inspected(args, audit=audit)
            self._left -= 1
            if not self._left and not self.reason:
                self.rest()
            return result
        finally:
            self._lock.release()

    @property
    def _due(self) -> bool:
        """Whether this watched call must be audited."""
        early = self.young and self._audits < min(self._calls, FIRST).bit_length()
        return (early and self._owner.early(self, self._calls)) or self._rota.takes(self)

    def _instead(self, *args: Any) -> Any:
        if self.strict:
            raise VerificationError(f"{self.label}, a kernel of {self.problem.op!r}: {self.reason}")
        return self.problem.spec.reference(*args)

    @property
    def label(self) -> str:
        """The kernel's name."""
        return self.backend.label(self.kernel)

    def inspected(self, args: tuple[Any, ...], *, audit: bool) -> Any:
        """Run and check a call; return the result in new memory.

        Raises
        ------
        VerificationError
            If the kernel is convicted, and the watch is strict.
        """
        device, began = self.problem.device, time.perf_counter()
        own, taken = self._copies(args) if audit and self._able else (None, None)
        self._audits += own is not None
        before, self._graded = State.now(device, quick=own is None), torch.is_grad_enabled()
        entered = time.perf_counter()
        result = self.planned(*args)
        left = time.perf_counter()
        try:
            given = args if taken else own or args
            disturbed = disturbance(
                before, device, lambda: self.planned(*twin(given)), lambda: self._reference(twin(given))
            )
            with torch.no_grad():
                found, result = self._looked_at(args, own, result, taken)
            found = self._put(found or disturbed)
        except FOREIGN as error:  # for example out of memory: the check failed, not the kernel
            found, self._able = "", self._able and not isinstance(error, torch.OutOfMemoryError)
            before.restore(device, own=True)
        self.cost, self.call_s = (
            time.perf_counter() - left + entered - began,
            min(self.call_s, left - entered),
        )
        self._owner.charge(self, self.cost)
        if audit:
            self._owner.audited(self)
        if found:
            self._owner.convict(self, found)
            if self.strict:
                self._instead(*args)
        return result

    def late(self, pending: Pending, *, changed: bool) -> str:
        """Return why the kernel is convicted for an earlier call; empty if it isn't."""
        if not pending.own:  # blocks suspect it: the next one is compared as a whole
            self._whole_s, self._rota.due_s = 0.0, 0.0
            self.arm()
            return ""
        try:
            with torch.no_grad():
                own, spec, result = pending.own, self.problem.spec, pending.result
                planned = None if pending.part else self._again
                now = versions(result)  # a result that was written since tells nothing of the call
                lost = changed or None in now or now != pending.versions
                found = confirmed(planned, spec, own, result, changed=lost)
                return self._put(found)
        except FOREIGN:  # for example out of memory: the check failed, not the kernel
            return ""

    def _again(self, *args: Any) -> Any:
        """Run the kernel as in the call that was checked last."""
        with torch.set_grad_enabled(self._graded):
            return self.planned(*args)

    def _copies(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...] | None, Rows | Sums | None]:
        """Return copies of the arguments, of a large call those of rows; None where memory is too short."""
        size, spec, outputs = sum(t.nbytes for t in leaves(args)), self.problem.spec, self.problem.outputs
        large = size > HELD and out_of(spec, args) is None
        try:
            given = spec.settled(*args) if large else args
            if large and (taken := rows(spec, given, outputs, _drawn) or sums(spec, given, _drawn)):
                return taken.of(given), taken
            if self._owner.room(COPIES * size, self.problem.device):
                return twin(args), None
            if large and (some := rows(spec, given, outputs, _drawn, self._audits)):
                return some.of(given), some
            if large:
                return (), None
        except FOREIGN:  # for example out of memory: the call must not fail for it
            pass
        return None, None

    def _looked_at(
        self, args: tuple[Any, ...], own: tuple[Any, ...] | None, result: Any, taken: Rows | Sums | None
    ) -> tuple[str, Any]:
        """Return why the kernel is convicted, empty if it isn't, and the caller's result."""
        spec, whole = self.problem.spec, (own or None) if taken is None else None
        reason, native = self._form(args, result, whole)
        malformed, seen = bool(reason), result
        if not reason and own and not isinstance(taken, Sums):
            if taken:
                right = taken.right(spec, own, result)
                seen = taken.results(result, right)
            else:
                right = native = self._reference(own) if native is None else native
            now = taken.of(spec.settled(*args)) if taken else args
            flags = torch.stack([strays(spec, self._inputs(own), right, seen), differ(spec, now, own)])
            if flags.is_cuda and not (taken and self._calls <= 1):
                self._later(own, seen, flags, part=taken is not None)
            elif bool(flags.any()):
                reason = confirmed(None if taken else self._again, spec, own, seen, changed=bool(flags[1]))
        if not reason and (own == () or isinstance(taken, Sums) or (taken and taken.some)):
            reason = self._as_a_whole(taken, args, own, result)
        if reason:
            if whole is not None and (malformed or reason == INPUTS):
                restore(args, whole)
            native = self._reference(whole or args) if native is None else native
            out = out_of(spec, args)
            return reason, native if out is None else out.copy_(native)
        self._hold(result)
        return "", result if REGIME.captured else self._apart(result)  # no caller gets a capture's run

    def _as_a_whole(self, taken: Rows | Sums | None, args: tuple[Any, ...], blocks: Any, result: Any) -> str:
        """Return how a result is wrong of which few or no parts were checked: against torch's own if due."""
        began, spec = time.perf_counter(), self.problem.spec
        size = COPIES // 3 * sum(t.nbytes for t in leaves(args))
        whole = taken is None or began >= self._whole_s
        if not isinstance(taken, Sums) and not (whole and self._owner.room(size, self.problem.device)):
            return ""
        if isinstance(taken, Sums) and not whole:
            odd = taken.strays(spec, blocks, result)
            if odd.is_cuda:
                self._later((), result, torch.stack([odd, odd]), part=True)
            if odd.is_cuda or not odd:
                return ""

        def unlike(native: Any, result: Any) -> bool:
            if isinstance(taken, Sums):
                return bool(taken.strays(spec, blocks, result, native))
            return apart(spec, args, native, result)

        try:
            native = spec.reference(*args)
            if unlike(native, result):  # unless another thread writes into the inputs
                steady = taken is not None and same(bits(leaves(taken.of(args))), bits(leaves(blocks)))
                again, now = self._again(*args), spec.reference(*args)
                wrong = (steady or unlike(now, again)) and not unlike(now, native)
                return f"it is {result}, torch's own is {native}" if wrong else ""
        except torch.OutOfMemoryError:
            self._whole_s = math.inf
            return ""
        # Where blocks said too little of such numbers, each audit compares the whole from now on.
        self._whole_s = time.perf_counter() + (time.perf_counter() - began) / SHARE if whole else -math.inf
        return ""

    def _put(self, reason: str) -> str:
        return f"wrong in a call on {self.problem}: {reason}" if reason else ""

    def _inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return without_out(self.problem.spec, args)

    def _form(
        self, args: tuple[Any, ...], result: Any, own: tuple[Any, ...] | None = None
    ) -> tuple[str, Any]:
        """Return the fault of a result's form, empty if there is none, and torch's own result if it ran."""
        out = out_of(self.problem.spec, args)
        if out is not None:
            same = isinstance(result, Tensor) and result.data_ptr() == out.data_ptr()
            return misformed(result, form(out)) if same else "out must be written and returned", None
        native = None
        if self._like is None and own is not None:
            native = self._reference(own)
        elif self._like is None:
            self._like = form(self.problem.outputs)
        reason = misformed(result, self._like) or self._misplaced(args, result)
        if reason and native is None:  # torch's own form may differ with other values, or from what is told
            native = self._reference(own or args)
            reason = misformed(result, self._like) or self._misplaced(args, result)
        return reason, native

    def _reference(self, args: tuple[Any, ...]) -> Any:
        """Run the reference, and note the form of its result and which parts share memory with an input."""
        given = self._inputs(args)
        native = self.problem.spec.reference(*given)
        inputs = spans(list(leaves(given)))
        self._like = form(native, inputs)
        self._shared |= {i for i, t in enumerate(leaves(native)) if meet(spans([t]), inputs)}
        return native

    def _misplaced(self, args: tuple[Any, ...], result: Any) -> str:
        inputs, others = spans(list(leaves(self._inputs(args)))), list[tuple[int, int]]()
        for i, tensor in enumerate(leaves(result)):
            mine = spans([tensor])
            if i not in self._shared and meet(mine, inputs):
                return "a result must not share memory with an input"
            if i not in self._shared and meet(mine, others):
                return "results must not share memory with each other"
            others += mine
            if i not in self._shared and meet(mine, [at for held, at in self._last if _alive(held)]):
                return "a result must not share memory with the result of the previous call"
        return ""

    def _alone(self, result: Any) -> list[Tensor]:
        """Return the results that must not share memory."""
        if self.problem.writes:
            return []
        return [t for i, t in enumerate(leaves(result)) if i not in self._shared and t.numel()]

    def _hold(self, result: Any) -> None:
        """Keep a result's memory, so that it isn't reused; keep only a weak reference to a large one."""
        self._last = [
            (s if s.nbytes() <= HELD else StorageWeakRef(s), spans([t])[0])
            for t in self._alone(result)
            for s in [t.untyped_storage()]
        ]

    def _apart(self, result: Any) -> Any:
        """Return a copy of a kept result: a reused buffer must not reach the caller."""
        small = [t for t in self._alone(result) if t.untyped_storage().nbytes() <= HELD]
        return exchanged(result, dict(zip(map(id, small), twin(small), strict=True)))

    def _later(self, own: tuple[Any, ...], result: Any, flags: Tensor, *, part: bool) -> None:
        """Start to read an audit's outcome, which is known once CUDA has completed it."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        pinned = torch.empty(2, dtype=torch.bool, pin_memory=True).copy_(flags, non_blocking=True)
        end.record()
        self._owner.later(Pending(self, own, result, pinned, start, end, versions(result), part))


def _alive(held: Any) -> bool:
    return not (isinstance(held, StorageWeakRef) and held.expired())
