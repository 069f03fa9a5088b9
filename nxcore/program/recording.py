"""Recording: one signature of a graph as two CUDA graphs, forward and backward, and their replay."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import CaptureError
from nxcore.graphs.buffers import new_like, untouched
from nxcore.graphs.dice import thrown
from nxcore.graphs.gradients import Gradients
from nxcore.graphs.pair import backward_of, viewed
from nxcore.graphs.recorder import Recorder, Ticket
from nxcore.graphs.replay import replayable
from nxcore.interop import autocast
from nxcore.program.memory import Memory

Run = Callable[..., Sequence[Any]]
"""Returns a graph's results, of its inputs."""


class Places:
    """Which inputs of a graph are bound by their address, and which a replay copies.

    Parameters
    ----------
    inputs : sequence
        The inputs of a call.
    stay : collection of int
        The places of those that are a module's, which calls pass again and again: they are bound.
    """

    def __init__(self, inputs: Sequence[Any], stay: Collection[int]) -> None:
        tensors = [i for i, t in enumerate(inputs) if isinstance(t, Tensor)]
        self.bound = [i for i in tensors if i in stay]
        self.given = [i for i in tensors if i not in stay]
        self.buffers = [i for i in self.bound if not inputs[i].requires_grad]
        self.leaves = [i for i in tensors if inputs[i].requires_grad]
        self.saved = [i for i in tensors if i not in {*self.buffers}]
        """Inputs that a second run gets as they were: not the buffers."""


def alias(tensor: Tensor) -> Tensor:
    """Return another tensor with the same memory, whose changes and gradients aren't those of ``tensor``."""
    return tensor.data.requires_grad_(tensor.requires_grad and torch.is_grad_enabled())


class Recording:
    """Both graphs of a call.

    Parameters
    ----------
    run : callable
        The graph.
    inputs : sequence
        The inputs of a call.
    places : Places
        Which of them are bound.
    uses : frozenset of int
        The places of the results that a backward pass begins from. Without any there is no backward graph.
    recorder : Recorder
        The recorder of the tensors' device.
    memory : Memory
        Where it lies.
    draws : bool
        Whether the call draws random numbers of the device.

    Raises
    ------
    CaptureError
        If a replay can't return one of the results.
    """

    def __init__(
        self,
        run: Run,
        inputs: Sequence[Any],
        places: Places,
        uses: frozenset[int],
        recorder: Recorder,
        memory: Memory,
        *,
        draws: bool,
    ) -> None:
        self.run, self.places, self.uses, self._draws = run, places, uses, draws
        self._recorder, self._memory, self._casts = recorder, memory, autocast.state()
        self._pointers = [inputs[i].data_ptr() for i in places.bound]
        own = list(inputs)
        for i in places.bound:
            own[i] = alias(inputs[i])
        self._number = 0
        self._ticket: Callable[[], Ticket | None] = _no_ticket
        self.partly: Callable[[frozenset[int]], None] = _ignored
        self._make(inputs, own)

    def _make(self, inputs: Sequence[Any], own: list[Any]) -> None:
        """Capture both graphs; ``own`` are the inputs, with aliases of those that are bound."""
        recorder, memory, places, run = self._recorder, self._memory, self.places, self.run
        needs = torch.is_grad_enabled()

        def there() -> tuple[list[Tensor], list[Any]]:
            for i in places.given:
                own[i] = new_like(inputs[i]).requires_grad_(needs and inputs[i].requires_grad)
            return [own[i] for i in places.given], list(run(*own))

        self._there: Callable[[], None]
        (given, found), self._there = recorder.capture(there, memory.pool)
        outs = self._met(found, [own[i] for i in (*places.bound, *places.given)])
        self.given, self.outs = [recorder.lying(t) for t in given], [recorder.lying(t) for t in outs]
        used = [found[i] for i in sorted(self.uses)]
        leaves = {i: own[i] for i in places.leaves if used}
        self._back: Callable[[], None] | None = None
        if leaves:

            def back() -> tuple[list[Tensor], Gradients]:
                grads, each = backward_of(used, list(leaves.values()), keeps=False)
                return grads, Gradients({i: g for i, g in zip(leaves, each, strict=True) if g is not None})

            (grads, self._gradients), self._back = recorder.capture(back, memory.pool)
            self._grads = [recorder.lying(g) for g in grads]
            self._gradients.lie(recorder, len(inputs))

    def _met(self, found: Sequence[Any], others: Sequence[Tensor]) -> list[Tensor]:
        """Note the form of the results, beside other tensors; return those that are tensors."""
        outs = [t for t in found if isinstance(t, Tensor)]
        check_results(outs, others)
        self._constants = [None if isinstance(t, Tensor) else t for t in found]
        self._at = [i for i, t in enumerate(found) if isinstance(t, Tensor)]
        self._needs = [t.requires_grad for t in outs]
        return outs

    def free(self) -> None:
        """Drop the graphs, and what lies in their memory: calls that a program still holds run again."""
        self._there = self._back = _gone
        self.given, self.outs, self._grads, self._gradients = [], [], [], Gradients({})

    @property
    def may_begin(self) -> bool:
        """Whether a replay overwrites nothing that is still needed."""
        return self._memory.free

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Return whether what is bound lies where it did."""
        return [inputs[i].data_ptr() for i in self.places.bound] == self._pointers

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Replay the forward graph; return copies of the results, differentiable."""
        with self._recorder.lock:
            if any(self._needs) and torch.is_grad_enabled():
                found = iter(_replay(self, inputs, *(inputs[i] for i in self.places.saved)))
            else:
                found = iter(self.forward(inputs))
        results = list(self._constants)
        for i in self._at:
            results[i] = next(found)
        return results

    def forward(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Replay the forward graph; return copies of the results, without gradients."""
        self._recorder.turn()  # inputs may be written where another result still is
        self.start = self._recorder.dice() if self._draws else None
        if self.given:
            with torch.no_grad():
                torch._foreach_copy_(self.given, [inputs[i] for i in self.places.given])
        self._there()
        return [t.clone() for t in self.outs]

    def enter(self) -> tuple[int, Ticket]:
        """Return the number of a new replay, and a ticket that lives as long as its tensors are needed."""
        ticket = self._memory.enter()
        self._number, self._ticket = self._number + 1, weakref.ref(ticket)
        return self._number, ticket

    def keeps(self, number: int) -> bool:
        """Return whether what that replay has saved is intact, so that it can be differentiated."""
        ticket = self._ticket()
        stands = self._there is not _gone and number == self._number
        return stands and ticket is not None and ticket.open

    def backward(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Replay the backward graph; return copies of the gradients of all inputs."""
        if self._back is None:
            return [None] * (max(self.places.saved, default=-1) + 1)
        self._recorder.turn()
        with torch.no_grad():
            torch._foreach_copy_(self._grads, list(grads))
        self._back()
        return self._gradients.copies()

    def again(self, inputs: Sequence[Any], start: Tensor | None, used: Sequence[int], grads: Any) -> Any:
        """Run the graph on the inputs of a replay; return the gradients of what needs one."""
        further = torch.is_grad_enabled()
        buffers = [inputs[i] for i in self.places.buffers]
        with (
            torch.enable_grad(),
            untouched(buffers),
            autocast.as_in(self._casts),
            thrown(self._recorder, start),
        ):
            own = viewed(inputs)
            outs = self.run(*own)
            wanted = [own[i] for i in self.places.leaves]
            return torch.autograd.grad(
                [outs[i] for i in used], wanted, grads, create_graph=further, allow_unused=True
            )


def check_results(outs: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Raise if copies of ``outs`` would differ from them by what they share.

    Raises
    ------
    CaptureError
        With what is wrong.
    """
    for out in outs:
        if type(out) is not Tensor or out.layout is not torch.strided:
            raise CaptureError(f"its results must be plain tensors, got {type(out).__name__}")
        if others and out.device != others[0].device:
            raise CaptureError(f"a result is on {out.device}, not on {others[0].device}")
    if overlap(others, outs):
        raise CaptureError("its results share memory with each other, or with an argument")


def overlap(others: Iterable[Tensor], outs: Sequence[Tensor]) -> bool:
    """Return whether a write to one of ``outs`` may be seen in another tensor."""
    if {*map(_memory, others)} & {*map(_memory, outs)}:
        return True
    for _, same in itertools.groupby(sorted(outs, key=_memory), key=_memory):
        group = list(same)
        if len(group) > 1:
            if len({out.dtype for out in group}) > 1:
                return True
            # Parts of one tensor are its elements once each. It is seen on the host, also in a capture.
            seen = torch.zeros(group[0].untyped_storage().nbytes() // group[0].itemsize, dtype=torch.uint8)
            for out in group:
                seen.as_strided(out.shape, out.stride(), out.storage_offset()).add_(1)
            if seen.max() > 1:
                return True
    return False


def _memory(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; another one for each tensor that has none."""
    return tensor.untyped_storage().data_ptr() or -id(tensor)


class _Replay(torch.autograd.Function):
    """A replay and its backward pass, which runs again where the backward graph can't serve it."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, inputs: Sequence[Any], *saved: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved)
        places = recording.places
        ctx.recording = recording
        ctx.weights = [t for t in saved if t.is_leaf and t.requires_grad]
        ctx.versions = [t._version for t in ctx.weights]
        ctx.others = [t if i not in {*places.saved} else None for i, t in enumerate(inputs)]
        ctx.number, ctx.ticket = recording.enter()
        found = recording.forward(inputs)
        ctx.start = recording.start
        needs = zip(found, recording._needs, strict=True)
        ctx.mark_non_differentiable(*(t for t, need in needs if not need))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        recording: Recording = ctx.recording
        at = recording._at
        used = [at[i] for i, g in enumerate(grads) if g is not None]
        given = [g for g in grads if g is not None]
        places = recording.places
        if not used:
            return None, None, *(None for _ in places.saved)
        # A weight that was written since is an error, if the pass needs it: torch's own tensors tell.
        intact = [t._version for t in ctx.weights] == ctx.versions
        fits = intact and frozenset(used) == recording.uses and all(map(replayable, given))
        with recording._recorder.lock:
            if fits and recording.keeps(ctx.number):
                ctx.ticket.open = False  # its memory may be overwritten from now on
                with contextlib.suppress(torch.OutOfMemoryError):  # it runs again, without what is compiled
                    found = recording.backward(given)
                    return None, None, *(found[i] for i in places.saved)
        inputs, saved = list(ctx.others), iter(ctx.saved_tensors)
        for i in places.saved:
            inputs[i] = next(saved)
        each = dict(zip(places.leaves, recording.again(inputs, ctx.start, used, given), strict=True))
        recording.partly(frozenset(used))
        return None, None, *(each.get(i) for i in places.saved)


_replay: Any = super(torch.autograd.Function, _Replay).apply
"""``_Replay.apply`` without its search for tensors of an ended transform: replays refuse these before."""


def _no_ticket() -> None:
    """Stand in for a dead reference."""


def _ignored(_: frozenset[int]) -> None:
    """Take no note."""


def _gone() -> None:
    """Stand in for a graph that was dropped."""
