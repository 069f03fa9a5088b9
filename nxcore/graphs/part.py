"""Part: a module whose calls in training replay two CUDA graphs, one forward and one backward.

A network of many small kernels waits for the host in eager mode. A captured part of it costs the host two
launches and some copies, whatever it contains. A call is replayed only if it certainly does the same as the
module's own call. All other calls run, and ``state`` gives the reason.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.call import ending
from nxcore.call.unusual import unusual, unusual_tensor
from nxcore.choose.survey import UnmeasuredError
from nxcore.context import PREFERENCE, Purpose
from nxcore.graphs.capture import Capture
from nxcore.graphs.graphed import deciding
from nxcore.graphs.hooks import saving
from nxcore.graphs.late import late
from nxcore.graphs.recorder import MAKING, Recorder, recorder_of
from nxcore.graphs.replay import Run, replay
from nxcore.interop import autocast
from nxcore.interop.internals import any_autocast
from nxcore.session import default

MET = 12
"""Calls before a capture: more than an exploration needs to start
(``nxcore.choose.learn.exploration.MET``)."""

SETTLED = 3
"""Calls before a capture where every problem is decided, as on a device with records."""

AGAIN = 64
"""Calls after which a capture is tried again, for example because of an exploration."""

SELDOM = 10
"""A signature in fewer than one of so many calls, such as an epoch's last batch, isn't captured."""

PATIENCE = 2
"""How often a capture waits for problems that are measured beside the program: those of its first run, and
those that the kernels chosen for them lead to. The few that these lead to are measured in its run.
"""

MOST = 4096
"""The most signatures whose calls are counted."""

REPLAYS = 1000
"""Replays after which a call runs once, so that the watches of its kernels see it."""

LIMIT = 4
"""The most captures, for further signatures or in place of invalid ones."""


class Part:
    """Runs a module's call, and replays it in training once a replay is verified and faster.

    Parameters
    ----------
    run : callable
        ``run(module, *tensors)`` returns one tensor, computed from these and the module's own. A call raises
        its exceptions; ``state`` reports those of a capture.
    record : callable
        Returns the ``Recorder`` of a device, or None.
    outer : Part, optional
        The part of an enclosing module: nothing is captured here unless that one can't be captured.

    Examples
    --------
    >>> part = nxcore.nn.Part(lambda module, x: 2 * x)
    >>> part(torch.nn.Identity(), torch.ones(2))
    tensor([2., 2.])
    >>> part.state
    'runs: calls so far: 1'
    """

    whole = False
    """Whether the parts inside do their own bookkeeping, as in any larger capture."""

    settled = SETTLED
    """Calls before a capture where every problem is decided."""

    def __init__(
        self,
        run: Run,
        record: Callable[[torch.device], Recorder | None] = recorder_of,
        outer: Part | None = None,
    ) -> None:
        self.run, self._record, self.outer = run, record, outer
        self._captures: dict[Any, list[Capture]] = {}
        self._met: dict[Any, tuple[int, int]] = {}  # the number of calls, and the index of the first
        self._calls = 0
        self._made, self._refusal, self._why = 0, "", ""
        self._waits = False  # for problems that are measured beside the program
        self._replays, self._convictions = 0, default().chooser.watches.convictions
        self._patience = PATIENCE
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: Any) -> Part:  # for another module, with other memory
        return Part(self.run, self._record, copy.deepcopy(self.outer, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Part, (self.run, recorder_of, self.outer)

    @property
    def captured(self) -> int:
        """The number of captured signatures."""
        return sum(map(len, self._captures.values()))

    @property
    def saved_ms(self) -> float:
        """The milliseconds that a replay saves a call, at most; 0 where nothing is captured."""
        captures = [c for found in self._captures.values() for c in found]
        return max((c.saved_ms for c in captures), default=0.0)

    @property
    def state(self) -> str:
        """Whether its calls run or replay, and why."""
        found = "; ".join(capture.state for captures in self._captures.values() for capture in captures)
        return found or f"runs: {self._refusal or self._why or 'no call in training yet'}"

    @property
    def alone(self) -> bool:
        """Whether its calls are captured, or may be: not where they run, or an enclosing part's are."""
        return self._outermost and bool(self._captures or not self._refusal)

    @property
    def takes(self) -> bool:
        """Whether the parts inside wait: this one, or an enclosing part, is or may be captured for them."""
        return not (self._refusal and self._outermost)

    @property
    def _outermost(self) -> bool:
        """Whether no enclosing part is captured in place of this one."""
        return self.outer is None or not self.outer.takes

    def _bookkeeping(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Return what the bookkeeping of a call within a larger capture waits in."""
        outer = self.outer
        return late(module if outer is None or outer.whole or outer._refusal else None)

    @property
    def pending(self) -> bool:
        """Whether one of the next calls may be captured."""
        return self.alone and bool(self._met) and not (self._refusal or self._captures)

    def leave(self, why: str) -> None:
        """Run all calls from now on."""
        with self._lock:
            self._refusal = why

    def clear(self) -> None:
        """Drop all captures; their memory is free once their results are."""
        with self._lock:
            self._captures.clear()
            self._met.clear()
            self._made = 0

    def __call__(self, module: nn.Module, *tensors: Tensor) -> Any:
        """Replay the call if its signature was captured; otherwise run it.

        Parameters
        ----------
        module : torch.nn.Module
            The same module in every call.
        tensors : Tensor
            At least one tensor, of any shapes and dtypes, all on one device.

        Returns
        -------
        Tensor
            The result of ``run``, differentiable, in new memory.
        """
        if self._refusal and not self._captures:
            return self.run(module, *tensors)
        if why := _unfit(module, tensors):
            self._why = why
            if why is WHOLE:
                self.clear()
            if why not in (WHOLE, OUTER):
                return self.run(module, *tensors)
            with self._bookkeeping(module):
                return self.run(module, *tensors)
        ending.halt()
        key, self._calls = _signature(tensors), self._calls + 1
        capture = self._standing(key)
        if capture is None:
            return self._meet(key, module, tensors)
        with capture.lock:
            if not capture.may_begin():
                if capture.late >= AGAIN:  # another part was captured again, and precedes it in a step
                    self._captures.pop(key, None)
                return self.run(module, *tensors)
            self._replays += 1
            if self._replays >= REPLAYS and default().chooser.watches.owed():
                self._replays = 0
                if _roomy(tensors[0].device):
                    return self.run(module, *tensors)
            if self._begin(capture, tensors):
                found = replay(capture, module, *tensors, *capture.inside.parameters)
                if found is not None:
                    return found
        return self._meet(key, module, tensors)

    def _begin(self, _capture: Capture, _tensors: Sequence[Tensor]) -> bool:
        """Return whether the module is as it was captured, which ``_standing`` has found here."""
        return True

    def _made_of(
        self, module: nn.Module, tensors: Sequence[Tensor], recorder: Recorder, ran_s: float
    ) -> Capture:
        """Return the capture of a call that took ``ran_s`` seconds at least."""
        return Capture(self.run, module, tensors, recorder, least_s=ran_s)

    def _standing(self, key: Any) -> Capture | None:
        """Return the capture of this signature that is valid for the module's present state."""
        captures = self._captures.get(key)
        if not captures:
            return None
        if self._convictions != (now := default().chooser.watches.convictions):
            self._convictions = now  # of a kernel that may be replayed
            self.clear()
            return None
        inside = captures[0].inside
        if not inside.holds():
            with self._lock:
                self._captures.pop(key, None)
            return None
        mode = inside.mode_now()
        return next((capture for capture in captures if capture.inside.mode == mode), None)

    def _meet(self, key: Any, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Run the call; capture it if its signature was called often enough."""
        began = time.perf_counter()
        result = self._ran(key, module, tensors)
        ran_s = time.perf_counter() - began  # of the host alone, and without the backward pass
        if self._refusal:
            return result
        if not self._outermost:
            self._why = "it is inside a part that may be replayed"
            return result
        with self._lock:
            met, first = self._met.get(key, (0, self._calls))
            met += 1
            if len(self._met) >= MOST:
                self._met.clear()
            self._met[key] = met, first
            if not self._due(met):
                self._why = self._why if met > MET or self._waits else f"calls so far: {met}"
            elif (met - 1) * SELDOM < (calls := self._calls - first + 1) - 1:
                self._why = f"too rarely called for the memory of a capture: {met} of {calls} calls"
            else:
                self._why = self._capture(key, module, tensors, ran_s)
        return result

    def _due(self, met: int) -> bool:
        """Return whether a signature is to be captured that was called so often."""
        # An exploration that hasn't begun may begin until then.
        settled = self.settled <= met < MET and all(e.over for e in default().chooser.explorations())
        first_try = self.settled if settled else MET
        if self._waits:
            return met >= first_try and not default().learning
        return met >= first_try and (met == MET or (met - first_try) % AGAIN == 0)

    def _ran(self, _key: Any, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Return the result of a call that isn't replayed."""
        return self.run(module, *tensors)

    def _capture(self, key: Any, module: nn.Module, tensors: Sequence[Tensor], ran_s: float) -> str:
        """Capture a call; return why that has to wait. A call that can't be captured is never tried again."""
        if self._made >= LIMIT:
            self._refusal = f"{LIMIT} captures were made, for other signatures or in place of invalid ones"
        elif (recorder := self._record(tensors[0].device)) is None:  # a watch waits for no capture then
            self._refusal = f"there are no graphs on {tensors[0].device.type!r}"
        elif default().learning:
            return "its problems are still in exploration"
        elif not MAKING.acquire(blocking=False):
            return "another thread is making a capture"
        else:
            self._made, self._waits = self._made + 1, False
            try:
                patient = self._patience > 0
                default().chooser.leave_to_calls(tensors[0].device, first=self._patience == PATIENCE)
                run = deciding(Purpose.FIND if patient else Purpose.DECIDE)
                with torch.enable_grad(), run, autocast.uncached():
                    made = self._made_of(module, tensors, recorder, ran_s)
            except UnmeasuredError as error:
                self._made, self._waits, self._patience = self._made - 1, True, self._patience - 1
                if default().chooser.survey.withdraw():
                    self._patience = 0
                    return self._capture(key, module, tensors, ran_s)
                return str(error)
            except Exception as error:  # a call that can't be captured runs as before
                self._refusal = f"{type(error).__name__}: {error}"
                return ""
            finally:
                MAKING.release()
            if made.gain <= 1.0:
                self._refusal = f"replaying is no faster: {made.figures}"
                return ""
            self._captures.setdefault(key, []).append(made)
            del self._met[key]
        return ""


def _roomy(device: torch.device) -> bool:
    """Return whether a call may run beside the memory of replays: as much is free as the program holds."""
    on_cuda = device.type == "cuda"
    return not on_cuda or torch.cuda.mem_get_info(device)[0] >= torch.cuda.memory_reserved(device)


WHOLE, OUTER = "an enclosing part is captured", "it is being captured in another graph"


def _unfit(module: nn.Module, tensors: Sequence[Tensor]) -> str:
    """Return why a call can't be replayed; empty if it can."""
    order = PREFERENCE.get()
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return OUTER  # during which no graph may be destroyed
    if order.purpose not in (Purpose.RUN, Purpose.WAIT):
        return WHOLE
    if not (module.training and torch.is_grad_enabled()):
        return "it isn't training"
    if order.observers:
        return "its operators are being recorded or profiled"
    if reason := unusual():
        return reason
    if torch.is_anomaly_enabled() or saving():
        return "anomaly detection or a hook on saved tensors is in force"
    if any_autocast() and tensors[0].device.type not in autocast.DEVICES:
        return "autocast is on"
    device = tensors[0].device
    for t in tensors:
        if (why := unusual_tensor(t)) or t.device != device:
            return why or f"its arguments must be on {device}, got {t.device}"
    return ""


def _signature(tensors: Sequence[Tensor]) -> Any:
    """Return the properties of arguments and context that a capture fixes; ``Inside`` covers the module."""
    return (
        *((t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in tensors),
        PREFERENCE.get(),
        autocast.state() if any_autocast() else None,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
    )
