"""Replay: one signature of a graph, from its first calls by plain torch to replays, or why it has none."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from nxcore.call.unusual import unusual, unusual_tensor
from nxcore.context import PREFERENCE, Purpose, as_captured
from nxcore.errors import CaptureError
from nxcore.graphs.buffers import buffer, untouched
from nxcore.graphs.dice import thrown, with_dice
from nxcore.graphs.graphed import deciding
from nxcore.graphs.hooks import saving
from nxcore.graphs.outcome import compared, wave
from nxcore.graphs.pair import check_leaves, viewed
from nxcore.graphs.part import SELDOM
from nxcore.graphs.recorder import MAKING, Recorder
from nxcore.interop import autocast, internals
from nxcore.program.audit import Audits, audited
from nxcore.program.compilers.entrants import Entrants, Entry
from nxcore.program.memory import Memory, kept, leave, roomy, spare
from nxcore.program.recording import Places, Recording, Run, alias
from nxcore.program.rounding import Rounded, check

MET, UNUSED = 1, 8
"""Calls before a recording; and calls without a backward pass after which none is expected."""

LEAST = 1.02
"""The speed that a replay must exceed, relative to a run: a recording keeps about the memory of a step."""

AGAIN = 2
"""How often a call is recorded again: its parameters were moved, or its losses use other results."""

_log = logging.getLogger(__name__)


class State(StrEnum):
    """The way of a signature's calls."""

    COUNTING = "counting"
    WAITING = "waiting"
    PLAIN = "plain"
    OURS = "ours"
    REFUSED = "refused"


Around = Callable[[], contextlib.AbstractContextManager[Any]]
"""A context for a recording."""


class Replay:
    """One signature of a graph.

    Parameters
    ----------
    run : callable
        The graph; it returns a sequence of results.
    inputs : sequence
        The inputs of a call.
    stay : collection of int
        The places of a module's parameters and buffers.
    recorder : Recorder
        The recorder of their device.
    memory : Memory
        The memory of the model.
    around : callable, optional
        A context for a recording.
    audits : bool, optional
        Whether replays are audited here.
    entrants : tuple of Entrants and bytes, optional
        What may serve in place of replays, and the graph that it compiles.

    Attributes
    ----------
    state : State
        ``counting``: its first calls, by plain torch. ``waiting``: for something that ``why`` names.
        ``ours``: it is replayed. ``plain``: it could be, but that is no faster, or memory is short.
        ``refused``: it can't be, or a replay was wrong.
    why : str
        The reason, where it isn't replayed.
    """

    def __init__(
        self,
        run: Run,
        inputs: Sequence[Any],
        stay: Collection[int],
        recorder: Recorder,
        memory: Memory,
        around: Around = contextlib.nullcontext,
        *,
        audits: bool = True,
        entrants: tuple[Entrants, bytes] | None = None,
    ) -> None:
        self.run, self.memory, self._recorder, self._around = run, memory, recorder, around
        self.places = Places(inputs, stay)
        self._device = next(t.device for t in inputs if isinstance(t, Tensor))
        self.state, self.why = State.COUNTING, ""
        self.ran_ms = self.replayed_ms = 0.0
        self._met, self._first, self._left = 0, memory.calls, AGAIN
        self._used: set[int] = set()
        self._uses = frozenset[int]()
        self._partly: frozenset[int] | None = None
        self._swept, self._renews, self._bytes = True, False, 0
        self._recording: Recording | None = None
        self._entrants, self._entry = entrants, list[Entry]()
        self.audits, self._audits = Audits(), audits
        if why := self._unsuited(inputs):
            self.refuse(why)

    @property
    def by(self) -> str:
        """The name of what serves calls: ``replay``, an entrant, or ``torch``."""
        return next((e.by for e in self._entry if e.by), "replay" if self.state is State.OURS else "torch")

    @property
    def saved_ms(self) -> float:
        """The milliseconds that a replay saves a call; 0 where none serves."""
        return self.ran_ms - self.replayed_ms if self.by == "replay" else 0.0

    @property
    def reason(self) -> str:
        """Why it isn't replayed, or how fast replays are."""
        if self.state is State.OURS:
            gain = f"{self.ran_ms / self.replayed_ms:.1f}x"
            times = f"{self.replayed_ms:.3g} ms replayed, {self.ran_ms:.3g} ms run"
            return f"{gain}: {times}{self.audits.report}"
        return f"{self.state}" + (f": {self.why}" if self.why else "")

    @property
    def report(self) -> str:
        """The state, as text."""
        return f"{'replays, ' if self.state is State.OURS else 'runs: '}{self.reason}"

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the results of the graph."""
        self.memory.calls += 1
        if self.state is State.REFUSED or unfit():
            return self.run(*inputs)
        if self._entrants and self.state in (State.PLAIN, State.OURS):
            self._entry = self._entry or [Entry(*self._entrants, self.places, self.run)]
            results = self._entry[0](inputs, self._uses, self._recorder, self.memory)
            if results is not None:
                return results
        if self.state is State.PLAIN:
            return self.run(*inputs)
        recording = self._recording
        if recording is None:
            return self._met_again(inputs)
        if not recording.holds(inputs):
            self._again("its parameters were moved")
            return self.run(*inputs)
        if self._renews and recording.may_begin:
            uses, recording = recording.uses, None
            self._drop()
            return self(inputs) if self._record(inputs, uses) else self._met_again(inputs)
        if (used := self._partly) is not None and recording.may_begin:
            if not self._again("its losses use other results than before"):
                return self.run(*inputs)
            return self(inputs) if self._record(inputs, used) else self._met_again(inputs)
        if not recording.may_begin:
            return self.run(*inputs)
        if self._swept is False:  # the memory of an audit's run, after its backward pass
            self._swept = True
            leave(self._device)
        if self._audits and self.audits.due(lambda: spare(self._device, self.memory.bytes)):
            return self._audited(recording, inputs)
        return recording(inputs)

    def end(self, why: str) -> None:
        """Run all calls from now on, and free the memory."""
        self._end(State.PLAIN, why)
        self._alone()

    def refuse(self, why: str) -> None:
        """Run all calls from now on, since no replay can do what they do."""
        self._end(State.REFUSED, why)
        self._alone()

    def renew(self) -> None:
        """Record the next call in place of this recording."""
        self._renews = self._recording is not None

    def _unsuited(self, inputs: Sequence[Any]) -> str:
        """Return why calls of such inputs can't be replayed; empty if they may be."""
        for t in inputs:
            if not isinstance(t, Tensor):
                continue
            if t.device != self._device:
                return f"its tensors are on {self._device} and {t.device}"
            if why := unusual_tensor(t):
                return why
        return ""

    def _end(self, state: State, why: str) -> None:
        self.state, self.why = state, why
        _log.info("a graph %s", self.report)
        self._drop()

    def _alone(self) -> None:
        """Let no entrant serve."""
        self._entrants = None
        while self._entry:
            self._entry.pop().free()

    def _drop(self) -> None:
        """Free the recording, if there is one."""
        self._renews, self._met, self._first, self._used = False, 0, self.memory.calls, set()
        self._partly, self.audits = None, Audits()
        if self._recording is not None:
            self._recording.free()
            self._recording = None
            self.memory.bytes, self._bytes = self.memory.bytes - self._bytes, 0
            leave(self._device)

    def _again(self, why: str) -> bool:
        """Record a later call again, if it wasn't too often; return whether that is so."""
        self._left -= 1
        if self._left < 0:
            self._end(State.PLAIN, why)
        else:
            self._drop()
            self.state, self.why = State.COUNTING, why
        return self._left >= 0

    def _met_again(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run a call; record it if its signature has come often enough."""
        used, self._used = frozenset(self._used), set()
        if self._due(used) and self._record(inputs, used):
            return self(inputs)
        if self.state in (State.PLAIN, State.REFUSED):
            return self.run(*inputs)
        self._met += 1
        watched = [inputs[i] for i in (*self.places.leaves, *self.places.given)]
        before = [*map(_version, watched)]
        found = list(self.run(*inputs))
        if before != [*map(_version, watched)]:
            self.refuse("it writes into an argument or a parameter")
        for place, out in enumerate(found):
            if isinstance(out, Tensor) and out.requires_grad:
                # The gradient that comes from outside alone: a result may lead to another one.
                found[place] = out.view_as(out)
                found[place].register_hook(functools.partial(_note, self._used, place))
        return found

    def _due(self, used: frozenset[int]) -> bool:
        """Return whether the call is to be recorded now."""
        if self._met < MET:
            return False
        learns = torch.is_grad_enabled() and bool(self.places.leaves)
        if learns and not used and self._met < UNUSED:
            self.state, self.why = State.WAITING, "no backward pass has come yet"
        elif self._met * SELDOM < self.memory.calls - self._first - 1:
            calls = self.memory.calls - self._first
            self.state, self.why = State.WAITING, f"it comes too rarely: {self._met} of {calls} calls"
        elif not self.memory.free:
            self.state, self.why = State.WAITING, "an earlier call's backward pass is still to come"
        else:
            return True
        return False

    def _record(self, inputs: Sequence[Any], used: frozenset[int]) -> bool:
        """Record a call; return whether it is replayed from now on."""
        device = self._device
        if not MAKING.acquire(blocking=False):
            self.state, self.why = State.WAITING, "another thread is making a capture"
            return False
        before, self._uses = kept(device), used
        try:
            if not roomy(device):
                self.end("there is too little memory for a recording")
                return False
            with self._around(), deciding(Purpose.CAPTURE), autocast.uncached():
                self._made(inputs, used)
        except torch.OutOfMemoryError:
            self.end("there was too little memory for a recording")
        except Exception as error:  # a call that can't be recorded runs as before
            self.refuse(f"{type(error).__name__}: {error}")
        finally:
            MAKING.release()
            self._bytes = max(0, kept(device) - before)
            self.memory.bytes += self._bytes
        return self.state is State.OURS

    def _made(self, inputs: Sequence[Any], used: frozenset[int]) -> None:
        """Record the call; compare a replay with a run, and time both."""
        places, recorder = self.places, self._recorder
        buffers = [inputs[i] for i in places.buffers]
        own = [alias(t) if i in {*places.bound} else t for i, t in enumerate(inputs)]
        for i in places.given:
            own[i] = buffer(inputs[i]) if torch.is_grad_enabled() else inputs[i].clone()
        leaves = [own[i] for i in places.leaves]
        given = [own[i] for i in places.given]
        dice, before = recorder.dice(), [*map(_version, given)]

        def outs_of(found: Sequence[Any]) -> list[Tensor]:
            return [t for t in found if isinstance(t, Tensor)]

        def differentiated(found: Sequence[Any], by: Sequence[Tensor]) -> tuple[list[Tensor], list[Any]]:
            outs = [found[i] for i in sorted(used)]
            each = internals.gradients(outs, by, [*map(wave, outs)]) if outs and by else ()
            return [t.detach() for t in outs_of(found)], list(each)

        def run_once() -> tuple[list[Tensor], list[Any]]:
            return differentiated(self.run(*own), leaves)

        def run_captured() -> tuple[list[Tensor], list[Any]]:
            with as_captured():
                return recorder.aside(run_once)

        with thrown(recorder, dice):
            rounded = Rounded(run_captured, [own[i] for i in places.saved], buffers, recorder)
            with untouched(buffers), as_captured():
                found, draws = with_dice(recorder, lambda: recorder.aside(lambda: self.run(*own)), may=True)
                check_leaves([t for t in outs_of(found) if t.requires_grad], leaves)
                ran = recorder.aside(functools.partial(differentiated, found, leaves))
                if used and ranks() > 1 and any(g is None for g in ran[1]):
                    raise CaptureError("a parameter has no gradient, for which other ranks might wait")
                found = []
                states = [t.clone() for t in buffers]
            if before != [*map(_version, given)] or not _alike(given, [inputs[i] for i in places.given]):
                raise CaptureError("it writes into an argument")
            with untouched(buffers):
                made = Recording(self.run, own, places, used, recorder, self.memory, draws=draws)
            made.partly = self._partial

            def replay_once() -> tuple[list[Tensor], list[Any]]:
                return differentiated(made(own), leaves)

            with untouched(buffers), thrown(recorder, dice):
                replayed = (*recorder.aside(replay_once), [t.clone() for t in buffers])
            check(replayed, (*ran, states), rounded, buffers)
            del replayed, rounded, ran, states
            with untouched(buffers):
                self.ran_ms, self.replayed_ms = compared(recorder, run_once, replay_once)
        if self.ran_ms <= LEAST * self.replayed_ms:
            times = f"{self.replayed_ms:.3g} ms replayed, {self.ran_ms:.3g} ms run"
            self._end(State.PLAIN, f"replaying is no faster: {times}")
            return
        self._recording, self.state, self.why = made, State.OURS, ""

    def _audited(self, recording: Recording, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a run, compared with those of a replay."""
        places, self._swept, inputs = self.places, False, viewed(inputs)
        found: Sequence[Any] = audited(
            lambda: list(self.run(*inputs)),
            lambda: recording(inputs),
            [inputs[i] for i in places.saved],
            [inputs[i] for i in places.buffers],
            self._recorder,
            self.audits,
            self.refuse,
        )
        return found

    def _partial(self, used: frozenset[int]) -> None:
        """Note which results a loss uses, in a thread of autograd's."""
        if used and self._recording is not None and used != self._recording.uses:
            self._partly = used


def ranks() -> int:
    """Return the number of processes that compute together."""
    spread = torch.distributed
    return spread.get_world_size() if spread.is_available() and spread.is_initialized() else 1


def unfit() -> bool:
    """Return whether a call made now is one that runs: what is around it would see other operators."""
    return bool(
        unusual()
        or saving()
        or PREFERENCE.get().observers
        or torch.is_anomaly_enabled()
        or internals.backward_pass() != -1
        or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
    )


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _alike(copies: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors in inference mode, which count no writes, are as they were."""
    return all(torch.equal(own, t) for own, t in zip(copies, tensors, strict=True) if own.is_inference())


def _note(seen: set[int], place: int, _: Tensor) -> None:
    """Note that a loss uses a result."""
    seen.add(place)
