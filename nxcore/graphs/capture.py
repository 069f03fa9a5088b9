"""Capture: one signature of a module's call as two CUDA graphs, and their replay."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from nxcore.choose.survey import UnmeasuredError
from nxcore.context import PREFERENCE, Purpose, as_captured
from nxcore.errors import CaptureError
from nxcore.graphs.buffers import aliased, buffer, untouched
from nxcore.graphs.dice import DRAWS, thrown, with_dice
from nxcore.graphs.late import Late, late
from nxcore.graphs.measured import Measured
from nxcore.graphs.outcome import ROUGH, Outcome, check, compared, differentiated, wave
from nxcore.graphs.pair import check_leaves
from nxcore.graphs.reads import Held
from nxcore.graphs.recorded import Recorded
from nxcore.graphs.recorder import Order, Recorder, Ticket
from nxcore.graphs.replay import Run, replay
from nxcore.graphs.snapshot import Inside
from nxcore.interop import autocast
from nxcore.session import default

BOTH, ALONE = 3.0, 2.0
"""The time of a call and its backward pass, relative to that of the call; how many replays of both the call
alone must take, so that no run has to be timed."""

Block = Callable[[], contextlib.AbstractContextManager[Late | None]]


class Capture:
    """One signature of a module's call as two CUDA graphs.

    Parameters
    ----------
    run, module, tensors
        The call.
    recorder : Recorder
        The recorder of the tensors' device.
    names : sequence, optional
        What the module's code reads besides itself, as of ``reads_of``: that of a whole network, whose
        parts do their bookkeeping by themselves, as in any larger capture. A replay of it can be undone.
    least_s : float, optional
        Seconds that a run takes at least, forward and backward.
    torchs : Tensor, optional
        Torch's own result of the call, with which that of a run is compared.
    dice : Tensor, optional
        The state of the device's random generator before that call, from which it may have drawn. Without
        it a call that draws isn't captured.
    counts_as : callable, optional
        Of a user's whole model, as of ``Inside``.

    Attributes
    ----------
    gain : float
        The speed of a replay relative to a run, forward and backward, host and device.
    late : int
        The number of calls in a row that had to run because a later capture was open.
    how : str
        Why the bookkeeping isn't done together; empty if it is.

    Raises
    ------
    CaptureError
        If the call draws random numbers of the host, or of the device without ``dice``, doesn't return one
        plain tensor with a gradient, is of a module that can't be captured, or its replay returns another
        result.
    """

    def __init__(
        self,
        run: Run,
        module: nn.Module,
        tensors: Sequence[Tensor],
        recorder: Recorder,
        names: Sequence[Held] | None = None,
        least_s: float = 0.0,
        torchs: Tensor | None = None,
        dice: Tensor | None = None,
        *,
        counts_as: Callable[[type], type] | None = None,
    ) -> None:
        self.run, self.lock, self._recorder = run, recorder.lock, recorder
        self.inside = Inside(module, names or (), counts_as=counts_as)
        self._begun, self._needs = False, tuple(self.inside.mode[1])
        self._order = recorder.order if names is None else Order()  # in a pool of its own nothing is shared
        self._place = self._order.place()
        self.draws, self.start = dice is not None, dice
        self._number, self.late = 0, 0
        self._ticket: Callable[[], Ticket | None] = _no_ticket
        self.count, self.how, self._bound = len(tensors), "", ""
        self._casts = autocast.state()
        own = (*self.inside.parameters, *self.inside.buffers)
        with (
            thrown(recorder, dice),
            untouched(self.inside.buffers),
            aliased(self.inside.modules, own) as others,
        ):
            held = [*map(buffer, tensors), *others[: len(self.inside.parameters)]]
            fresh = [t.detach().clone().requires_grad_(t.requires_grad) for t in held]
            before = [t._version for t in held]
            measured, survey = Measured(), default().chooser.survey
            finding = PREFERENCE.get().purpose is Purpose.FIND
            taken = survey.taken if finding else 0
            ran, grad = self._tried(module, held, recorder)
            # Those that were measured within the run too: its first plans are of what was known before.
            if finding and (survey.open or survey.taken > taken):
                raise UnmeasuredError("its problems are being measured beside the program")
            if torchs is not None:
                check("torch's own result", (torchs, ()), (ran[0], ()), ROUGH)
            run_once = functools.partial(self._run, module, held, grad)
            # As calls do it, with the copies of inputs and results.
            replay_once = functools.partial(self._replayed, module, fresh, grad)
            if names is None:
                self._of_part(module, held, recorder, run_once, replay_once, ran)
            else:
                if [t._version for t in held] != before:
                    raise CaptureError("it writes into its arguments or parameters")
                if self.inside.put_back():
                    raise CaptureError("it changes a list, dictionary or set that it reads")
                self._of_whole(module, held, recorder, run_once, measured)
                with self.again(dice):
                    check("a replay after a run", recorder.aside(replay_once), ran)
            self.ran_ms, self.replayed_ms = self._times(recorder, run_once, replay_once, 1e3 * least_s)
            self.gain = self.ran_ms / self.replayed_ms

    def _tried(self, module: nn.Module, held: Sequence[Tensor], recorder: Recorder) -> tuple[Outcome, Tensor]:
        """Run the call as a capture does; return the outcome, and the gradient that its backward pass had."""
        call = functools.partial(self._returned, module, held[: self.count])
        with as_captured():
            out, self.draws = with_dice(recorder, lambda: recorder.aside(call), may=self.draws)
        after = recorder.dice()
        check_leaves([out], held)
        grad = wave(out)
        with as_captured():
            ran = recorder.aside(functools.partial(differentiated, out, held, grad))
        if not torch.equal(after, recorder.dice()):
            recorder.put_back(after)
            raise CaptureError(DRAWS)
        return ran, grad

    @contextlib.contextmanager
    def again(self, dice: Tensor | None) -> Iterator[None]:
        """Let a run be under the autocast of a replay that began with ``dice``, and draw what that drew."""
        with autocast.as_in(self._casts), thrown(self._recorder, dice if self.draws else None):
            yield

    def _of_part(
        self,
        module: nn.Module,
        held: Sequence[Tensor],
        recorder: Recorder,
        run_once: Callable[[], Outcome],
        replay_once: Callable[[], Outcome],
        ran: Outcome,
    ) -> None:
        """Record with the bookkeeping together, which is another way to run than before; else one by one."""
        try:
            with late(module), as_captured():  # kernels of the capture are chosen here
                check("a run with its bookkeeping together", recorder.aside(run_once), ran)
            self._recorded = self._record(module, held, recorder, functools.partial(late, module))
            check("a replay after two runs", recorder.aside(replay_once), ran)
        except Exception as error:  # what fails together may not fail one by one
            for _ in range(2):  # some calls alternate
                with as_captured():
                    check("a second run", recorder.aside(run_once), ran)
            self.how = f"; bookkeeping one by one: {type(error).__name__}: {error}"
            self._recorded = self._record(module, held, recorder, contextlib.nullcontext)
            check("a replay after two runs", recorder.aside(replay_once), ran)

    def _of_whole(
        self,
        module: nn.Module,
        held: Sequence[Tensor],
        recorder: Recorder,
        run_once: Callable[[], Outcome],
        measured: Measured,
    ) -> None:
        """Record the second run. Its replay is compared with the first run, so no run is only compared.

        Runs come before it where a recording would find what isn't measured.
        """
        with as_captured():
            measured.repeated(functools.partial(recorder.aside, run_once))
        record = functools.partial(self._record, module, held, recorder, contextlib.nullcontext, undone=True)
        try:
            self._recorded = record()
        except Exception:  # a library may prepare something at its second call
            with as_captured():
                recorder.aside(run_once)
            self._recorded = record()

    def _times(
        self,
        recorder: Recorder,
        run_once: Callable[[], object],
        replay_once: Callable[[], object],
        least_ms: float,
    ) -> list[float]:
        """Return the times of a run and a replay, in ms; no run is timed where ``least_ms`` is enough."""
        replayed = 1e3 * recorder.seconds(functools.partial(recorder.aside, replay_once))
        if least_ms > ALONE * replayed:
            self._bound = "at least "
            return [least_ms, replayed]
        return compared(recorder, run_once, replay_once)

    @property
    def saved_ms(self) -> float:
        """The milliseconds that a replay saves, by estimate where only a forward pass of a run was timed."""
        return self.ran_ms * (BOTH if self._bound else 1.0) - self.replayed_ms

    @property
    def figures(self) -> str:
        """Both times, as text."""
        return f"{self.replayed_ms:.3g} ms replayed, {self._bound}{self.ran_ms:.3g} ms run"

    @property
    def state(self) -> str:
        """The state of the signature, as text."""
        count = self._recorded.together
        sums = f"; {count} weights' gradients are one sum" if count else ""
        norms = self._recorded.norms
        sums += f"; {norms} norms are computed with sums of their results" if norms else ""
        return f"replays, {self.gain:.1f}x: {self.figures}{sums}{self._recorded.groups}{self.how}"

    def may_begin(self) -> bool:
        """Return whether a replay overwrites no tensors still needed; count calls that must run instead."""
        ticket = self._ticket()
        free = self._order.permits(self._place)
        self.late = 0 if free else self.late + 1
        return free and (ticket is None or not ticket.open)

    def begin(self, tensors: Sequence[Tensor]) -> bool:
        """Replay the forward graph, and test the module while the device works; undo it if that changed.

        Return whether the module is as it was captured: then ``replay`` returns the result, or None if its
        parameters need other gradients.
        """
        self._launch(tensors)
        self._begun = self.inside.holds() and self.inside.training_now() == self.inside.mode[0]
        if not self._begun:
            self._undo()
        return self._begun

    def _launch(self, tensors: Sequence[Tensor]) -> None:
        """Replay the forward graph."""
        self._recorder.turn()  # inputs may be written where another result still is
        self.start = self._recorder.dice() if self.draws else None
        self._recorded.begin(tensors)

    def _undo(self) -> None:
        """Put back what the last replay of the forward graph has written, and drawn."""
        self._recorded.undo()
        if self.start is not None:
            self._recorder.put_back(self.start)

    def refuses(self, needs: tuple[bool, ...]) -> bool:
        """Return whether a replay was begun though parameters need other gradients; undo it."""
        if self._begun and needs[self.count :] != self._needs:
            self._begun = False
            self._undo()
            return True
        return False

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Replay the forward graph, unless it was begun; return a copy of the result, without a gradient."""
        if not self._begun:
            self._launch(tensors)
        self._begun = False
        return self._recorded.out.clone()

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """Replay the backward graph; return copies of the gradients of tensors and parameters."""
        self._recorder.turn()
        return self._recorded.backward(grad)

    def enter(self) -> tuple[int, Ticket]:
        """Return the number of a new replay, and a ticket that lives as long as its tensors are needed."""
        ticket = self._order.enter(self._place)
        self._number, self._ticket = self._number + 1, weakref.ref(ticket)
        return self._number, ticket

    def keeps(self, number: int) -> bool:
        """Return whether the values saved by that replay are intact, so that it can be differentiated."""
        ticket = self._ticket()
        return (
            number == self._number and ticket is not None and ticket.open and self._order.permits(self._place)
        )

    def _returned(self, module: nn.Module, given: Sequence[Tensor]) -> Tensor:
        """Run the call; return its result, after a check that a replay can return it."""
        out = self.run(module, *given)
        if type(out) is not Tensor or not out.requires_grad or out.device != given[0].device:
            raise CaptureError(
                f"it must return one plain tensor that needs a gradient, got {type(out).__name__}"
            )
        return out

    def _run(self, module: nn.Module, held: Sequence[Tensor], grad: Tensor) -> Outcome:
        """Run the call and its backward pass; return the result and the gradients."""
        return differentiated(self._returned(module, held[: self.count]), held, grad)

    def _replayed(self, module: nn.Module, fresh: Sequence[Tensor], grad: Tensor) -> Outcome:
        """Do the same with replays."""
        with self.lock:  # not in the backward pass, which autograd runs in another thread
            out = replay(self, module, *fresh)
        return differentiated(out, fresh, grad)

    def _record(
        self,
        module: nn.Module,
        held: Sequence[Tensor],
        recorder: Recorder,
        block: Block,
        *,
        undone: bool = False,
    ) -> Recorded:
        """Capture both graphs, for a call with ``held`` within ``block``; the forward can be ``undone``."""
        blocks: list[Late | None] = []

        def call(given: Sequence[Tensor]) -> Tensor:
            with block() as waiting:
                blocks.append(waiting)
                return self._returned(module, given)

        # A replay that begins before the test reads and writes this memory, whatever became of the module.
        self._memory = [t.data for t in (*self.inside.parameters, *self.inside.buffers)] if undone else []
        buffers = self._memory[len(self.inside.parameters) :]
        made = Recorded(call, held, self.count, recorder, buffers, alone=undone)
        made.norms = sum(b.norms for b in blocks if b is not None)
        made.groups = next((b.groups for b in blocks if b is not None), "")
        made.together = sum(b.sums.count for b in blocks if b is not None and b.sums is not None)
        return made


def _no_ticket() -> None:
    """Stand in for a dead reference."""
