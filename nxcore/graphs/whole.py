"""Whole: a network of parts as one part, whose step is one replay forward and one backward."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.context import NOTHING, PREFERENCE, Purpose, in_force
from nxcore.errors import CaptureError
from nxcore.graphs.capture import Capture
from nxcore.graphs.interim import ByTorch, Interim
from nxcore.graphs.ledger import Ledger
from nxcore.graphs.part import Part
from nxcore.graphs.reads import Held
from nxcore.graphs.recorder import Recorder, recorder_of
from nxcore.graphs.replay import Run
from nxcore.interop.internals import any_autocast
from nxcore.measure.collection import young_alone
from nxcore.session import default

ROOM = 1.0
"""The free memory that a backward pass and a capture may need, relative to what a forward pass took."""

CAPTURE_COST = 4.0
"""The cost of a capture besides the program's steps, relative to its first run, which only finds problems."""

FOUND = ("verdicts", "identities")
"""Kinds of documents that a capture leaves: what its kernels were found to be."""

LONGEST_S = 45.0
"""Seconds of steps after which a network waits no longer for what its replays save."""


class Whole(Part):
    """A part that is a network of parts: its capture takes the place of theirs.

    A network has thousands of modules, and the test whether they are as they were takes the host some
    milliseconds. So a replay is begun first, and undone if the module changed: it has written results that
    no caller has, and buffers, whose values the graph keeps.

    Parameters
    ----------
    run, record
        As of ``Part``.
    reads : callable
        ``reads(module)`` returns the names outside of the module that its code reads, or raises ``Unclear``.

    Attributes
    ----------
    called : bool
        Whether it is called. Until then the parts inside are captured by themselves.
    classes : list of type
        The classes of the modules inside, as they are to be captured; empty if any may be.
    plainly : callable
        ``plainly(module)`` returns a context, to be used again, within which the modules inside run by
        torch's or the user's own code, where torch serves them anyway.
    """

    whole = True
    settled = 2

    def __init__(
        self,
        run: Run,
        reads: Callable[[nn.Module], list[Held]],
        record: Callable[[torch.device], Recorder | None] = recorder_of,
    ) -> None:
        super().__init__(run, record)
        self._reads, self.called, self._roomy = reads, False, True
        self._torchs: Tensor | None = None  # the result of a call that torch served, until a capture of it
        self._dice: Tensor | None = None  # the state of the device's random generator before it
        self.classes: list[type[nn.Module]] = []
        self.plainly: Callable[[nn.Module], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._inside: list[nn.Module] | None = None
        self._plain: contextlib.AbstractContextManager[Any] | None = None
        self._interim: tuple[Any, Interim] | None = None  # of the signature whose capture waits
        self._ledger, self._tried_s = Ledger(), 0.0

    def __deepcopy__(self, memo: Any) -> Whole:
        other = Whole(self.run, self._reads, self._record)
        other.classes, other.plainly = self.classes, self.plainly
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return Whole, (self.run, self._reads, recorder_of)

    @property
    def state(self) -> str:
        """Whether its calls run or replay, and why."""
        found = super().state
        if self._interim is None or self._captures:
            return found
        return f"{found}; torch's own kernels are replayed until then: {self._interim[1].state or 'not yet'}"

    @property
    def takes(self) -> bool:
        """Whether it is or may be captured in place of the parts inside."""
        return self.called and not self._refusal

    def _bookkeeping(self, _module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Return nothing to wait in: the parts inside have theirs, whose sums kernels can take."""
        return contextlib.nullcontext()

    def suits(self, module: nn.Module) -> bool:
        """Return whether the modules inside have the classes that are captured, or that are to be.

        If they don't, the caller runs the module. The parts inside wait if that is for some calls alone.
        """
        found = [c.inside for captures in self._captures.values() for c in captures]
        if found:
            return any(inside.classes_hold() for inside in found)
        if not self._waits or self._inside is None:
            self._inside = [*module.modules()][1:]  # to find them takes a network's call some percent
        self.called = [*map(type, self._inside)] == self.classes
        return self.called

    def __call__(self, module: nn.Module, *tensors: Tensor) -> Any:
        """Replay the call if its signature was captured; otherwise run it."""
        self.called = True
        captures = [c for found in self._captures.values() for c in found]
        if any(capture.inside.modules[0] is not module for capture in captures):
            return self.run(module, *tensors)  # a shallow copy, which shares all but its tensors
        return super().__call__(module, *tensors)

    def _ran(self, key: Any, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Return the result of a call; torch serves the first ones, as far as nothing must be learnt.

        The capture computes by other kernels, so what is chosen and verified here would serve a few calls.
        Torch needs more memory, so kernels serve where it has little.
        """
        self._torchs = None  # of other values
        met, _ = self._met.get(key, (0, 0))
        device = tensors[0].device
        recorder = self._record(device)
        self._dice = None if recorder is None else recorder.dice()
        first = met < self.settled
        if not met and recorder is not None:
            default().chooser.expect(tensors[0])
        waits = (first or self._waits) and self._roomy and PREFERENCE.get()._replace(policy="") == NOTHING
        if self._refusal or not waits or recorder is None or self._dice is None:
            return super()._ran(key, module, tensors)
        # Copies take a network's call some percent: the first calls have shown that torch has the memory.
        buffers = [(b, b.detach().clone()) for b in module.buffers()] if first else []
        before = _allocated(device)
        try:
            with (
                in_force(purpose=Purpose.WAIT),
                contextlib.nullcontext() if first else self._plain_of(module),
            ):
                found = super()._ran(key, module, tensors)
            if not first or _fits(device, before):
                # What torch computed is compared with a capture's result, unless other kernels round more.
                self._torchs = found.detach() if _exact(found) else None
                return found
        except torch.OutOfMemoryError:
            if not first:
                raise
        found, self._roomy = None, False
        recorder.put_back(self._dice)
        for held, value in buffers:
            held.data.copy_(value)
        return super()._ran(key, module, tensors)

    def _plain_of(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Return the context of ``plainly``, made once."""
        if self._plain is None:
            self._plain = self.plainly(module)
        return self._plain

    def _meet(self, key: Any, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Run the call, or replay torch's own kernels while its problems are measured; capture it after.

        That is once the replays have saved what the captures cost.
        """
        self._ledger.begins()
        held = self._interim
        if held is not None and self._waits and held[0] == key and (default().learning or self._owes()):
            found = None
            if self._ledger.plain_s:
                found = held[1].call(module, tensors)
            else:
                self._ledger.plainly()
            if found is not None:
                met, first = self._met.get(key, (0, self._calls))
                self._met[key] = met + 1, first
                return found
        return super()._meet(key, module, tensors)

    def _owes(self) -> bool:
        """Return whether a capture would cost more than its steps have saved, and replays save more."""
        ledger = self._ledger
        replays = self._interim is not None and self._interim[1].replays
        return replays and ledger.spent_s < LONGEST_S and ledger.owes(CAPTURE_COST * self._tried_s)

    def _due(self, met: int) -> bool:
        return super()._due(met) and not (self._waits and self._owes())

    def _capture(self, key: Any, module: nn.Module, tensors: Sequence[Tensor], ran_s: float) -> str:
        """Capture a call. Where that waits for a process beside the program, torch's kernels are replayed."""
        default().chooser.beforehand.end()
        patience, began = self._patience, time.perf_counter()
        with young_alone(), default().chooser.tuner.gate.store.later(*FOUND):
            why = super()._capture(key, module, tensors, ran_s)
        took = time.perf_counter() - began
        self._tried_s = self._tried_s or took
        self._ledger.add(took)
        if not self._waits and self._interim is not None:
            self._interim[1].end()
            self._interim = None
        elif self._waits and self._patience < patience and self._interim is None:
            self._interim = key, Interim(self._by_torch, self._ledger)
        return why

    def _by_torch(self, module: nn.Module, tensors: Sequence[Tensor]) -> ByTorch:
        """Return the capture of a call that runs as those do which wait."""
        recorder = self._record(tensors[0].device)
        if recorder is None:
            raise CaptureError(f"there are no graphs on {tensors[0].device.type!r}")

        def run(module: nn.Module, *tensors: Tensor) -> Any:
            with in_force(purpose=Purpose.WAIT), self._plain_of(module):
                return self.run(module, *tensors)

        return ByTorch(run, module, tensors, recorder, self._reads(module), self._ledger.plain_s)

    def _standing(self, key: Any) -> Capture | None:
        captures = self._captures.get(key)
        if not captures:
            return None
        inside = captures[0].inside
        mode = inside.mode_now() if len(captures) > 1 else inside.mode
        return next((capture for capture in captures if capture.inside.mode == mode), None)

    def _begin(self, capture: Capture, tensors: Sequence[Tensor]) -> bool:
        if capture.begin(tensors):
            return True
        if not capture.inside.holds():  # else its mode alone has changed
            with self._lock:
                self._captures.clear()
        return False

    def _made_of(
        self, module: nn.Module, tensors: Sequence[Tensor], recorder: Recorder, ran_s: float
    ) -> Capture:
        torchs, self._torchs = self._torchs, None
        return Capture(self.run, module, tensors, recorder, self._reads(module), ran_s, torchs)


def _exact(result: Any) -> bool:
    """Return whether other kernels give the same result but for roundings of float32."""
    return (
        isinstance(result, Tensor) and result.dtype in (torch.float32, torch.float64) and not any_autocast()
    )


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _fits(device: torch.device, before: int) -> bool:
    """Return whether there is memory for what follows a call before which so much was allocated."""
    if device.type != "cuda":
        return True
    now = torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - now
    return free >= ROOM * (now - before)
