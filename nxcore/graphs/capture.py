"""Capture: one signature of a module's call as two CUDA graphs, and their replay."""

# ruff: noqa: SLF001  torch has no public form of these checks

from __future__ import annotations

import functools
import itertools
import math
import statistics
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.errors import CaptureError
from nxcore.graphs.buffers import aliased, buffer, new_like, untouched
from nxcore.graphs.pair import backward_of, check_leaves
from nxcore.graphs.recorder import Recorder, Ticket
from nxcore.graphs.snapshot import Inside

ROUNDS = 7
"""The number of pairs of a run and a replay, by which the speed is compared."""

AGREES = 1e-2
"""The allowed relative difference of gradients, since runs may add in another order."""

SMALL = 2**20
"""The most bytes of gradients that are copied together."""

Run = Callable[..., Any]
Outcome = tuple[Tensor, Sequence[Tensor | None]]
"""A result and its gradients."""


class Capture:
    """One signature of a module's call as two CUDA graphs.

    Parameters
    ----------
    run, module, tensors
        The call.
    recorder : Recorder
        The recorder of the tensors' device.

    Attributes
    ----------
    gain : float
        The speed of a replay relative to a run, forward and backward, host and device.
    late : int
        The number of calls in a row that had to run because a later capture was open.

    Raises
    ------
    CaptureError
        If the call draws random numbers, doesn't return one plain tensor with a gradient, is of a module that
        can't be captured, or its replay returns another result.
    """

    def __init__(self, run: Run, module: nn.Module, tensors: Sequence[Tensor], recorder: Recorder) -> None:
        self.run, self.inside, self.lock = run, Inside(module), recorder.lock
        self._order, self._turn, self._place = recorder.order, recorder.turn, recorder.order.place()
        self._number, self.late = 0, 0
        self._ticket: Callable[[], Ticket | None] = _no_ticket
        self._count = len(tensors)
        own = (*self.inside.parameters, *self.inside.buffers)
        with untouched(self.inside.buffers), aliased(self.inside.modules, own) as others:
            held = [*map(buffer, tensors), *others[: len(self.inside.parameters)]]
            fresh = [t.detach().clone().requires_grad_(t.requires_grad) for t in held]
            dice = recorder.dice()
            out = recorder.aside(lambda: self._returned(module, held[: self._count]))
            if not torch.equal(recorder.dice(), dice):
                recorder.put_back(dice)
                raise CaptureError("it draws random numbers")
            check_leaves([out], held)
            grad = _wave(out)
            del out
            run_once = functools.partial(self._run, module, held, grad)
            ran = recorder.aside(run_once)
            _check("a second run", recorder.aside(run_once), ran)
            self._record(module, held, recorder)
            # As calls do it, with the copies of inputs and results.
            replay_once = functools.partial(self._replayed, module, fresh, grad)
            _check("a replay after two runs", recorder.aside(replay_once), ran)
            times = [
                [
                    recorder.seconds(functools.partial(recorder.aside, once))
                    for once in (run_once, replay_once)
                ]
                for _ in range(ROUNDS)
            ]
        self.ran_ms, self.replayed_ms = (1e3 * statistics.median(t) for t in zip(*times, strict=True))
        self.gain = self.ran_ms / self.replayed_ms

    @property
    def figures(self) -> str:
        """Both times, as text."""
        return f"{self.replayed_ms:.3g} ms replayed, {self.ran_ms:.3g} ms run"

    @property
    def state(self) -> str:
        """The state of the signature, as text."""
        return f"replays, {self.gain:.1f}x: {self.figures}"

    def may_begin(self) -> bool:
        """Return whether a replay overwrites no tensors still needed; count calls that must run instead."""
        ticket = self._ticket()
        free = self._order.permits(self._place)
        self.late = 0 if free else self.late + 1
        return free and (ticket is None or not ticket.open)

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Replay the forward graph; return a copy of the result, without a gradient."""
        self._turn()  # inputs may be written where another result still is
        torch._foreach_copy_(self.given, list(tensors))
        self._there()
        return self.out.clone()

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """Replay the backward graph; return copies of the gradients of tensors and parameters."""
        self._turn()
        self.gradient.copy_(grad)
        self._back()
        found = [g if g is None else g.clone() for g in self._single]
        if self._flat is not None:
            begin, flat = 0, self._flat.clone()
            for places, shape, size in self._alike:
                end = begin + len(places) * size
                owned = flat[begin:end].view(len(places), *shape).unbind(0)
                for place, own in zip(places, owned, strict=True):
                    found[place] = own
                begin = end
        return found

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
        out = self._returned(module, held[: self._count])
        wanted = [t for t in held if t.requires_grad]
        return out.detach(), torch.autograd.grad(out, wanted, grad, allow_unused=True)

    def _replayed(self, module: nn.Module, fresh: Sequence[Tensor], grad: Tensor) -> Outcome:
        """Do the same with replays."""
        with self.lock:  # not in the backward pass, which autograd runs in another thread
            out = replay(self, module, *fresh)
        wanted = [t for t in fresh if t.requires_grad]
        return out.detach(), torch.autograd.grad(out, wanted, grad, allow_unused=True)

    def _record(self, module: nn.Module, held: Sequence[Tensor], recorder: Recorder) -> None:
        """Capture both graphs, for a call with ``held``.

        Only the autograd nodes hold the saved tensors, so their memory isn't reused. Other memory may be: of
        inputs and results only the addresses are kept, and they are written or read next to the replay.
        """

        def there() -> tuple[list[Tensor], Tensor]:
            given = [new_like(t).requires_grad_(t.requires_grad) for t in held[: self._count]]
            return given, self._returned(module, given)

        (given, out), self._there = recorder.capture(there)
        leaves = {i: t for i, t in enumerate([*given, *held[self._count :]]) if t.requires_grad}

        def back() -> tuple[Tensor, dict[int, Tensor], Tensor | None]:
            (grad,), found = backward_of([out], list(leaves.values()))
            gradients = {i: g for i, g in zip(leaves, found, strict=True) if g is not None}
            flat = [gradients[i].reshape(-1) for i in _small(gradients, out.dtype)]
            return grad, gradients, torch.cat(flat) if flat else None

        (grad, gradients, flat), self._back = recorder.capture(back)
        small = _small(gradients, out.dtype)
        self._nodes = out.grad_fn
        self.given, self.out = [recorder.lying(t) for t in given], recorder.lying(out)
        self.gradient, self._flat = recorder.lying(grad), None if flat is None else recorder.lying(flat)
        single = {i: recorder.lying(g) for i, g in gradients.items() if i not in small}
        self._single = [single.get(i) for i in range(len(held))]
        groups = itertools.groupby(small, key=lambda i: tuple(gradients[i].shape))
        self._alike = [(list(group), shape, math.prod(shape)) for shape, group in groups]


def _small(gradients: Mapping[int, Tensor], dtype: torch.dtype) -> list[int]:
    """Return the indices of gradients that are copied together, grouped by shape."""
    return sorted(
        (i for i, g in gradients.items() if g.dtype is dtype and g.nbytes <= SMALL),
        key=lambda i: (tuple(gradients[i].shape), i),
    )


def _wave(out: Tensor) -> Tensor:
    """Return a gradient for ``out``: neither constant, as that of a norm would be 0, nor random."""
    wave = torch.arange(out.numel(), device=out.device).mul(0.7).sin().to(out.dtype)
    return torch.empty_like(out, requires_grad=False).copy_(wave.view(out.shape))


def _check(what: str, found: Outcome, ran: Outcome) -> None:
    """Compare an outcome with that of a run with the same values."""
    off = [_off([found[0]], [ran[0]]), _off(found[1], ran[1])]
    if not max(off) <= AGREES:
        raise CaptureError(
            f"{what} differs from the first, by {off[0]:.2g} of the result and {off[1]:.2g} of the gradients"
        )


class _Replay(torch.autograd.Function):
    """A captured call and its backward pass, which runs again where the capture can't serve it."""

    @staticmethod
    def forward(ctx: Any, capture: Capture, module: nn.Module, *tensors: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.capture, ctx.module = capture, module
        ctx.number, ctx.ticket = capture.enter()
        return capture.forward(tensors[: len(capture.given)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return None, None, *(None for _ in ctx.needs_input_grad[2:])
        capture: Capture = ctx.capture
        with capture.lock:
            if _replayable(grad) and capture.keeps(ctx.number):
                found = capture.backward(grad)
                ctx.ticket.open = False  # its memory may be overwritten from now on
                return None, None, *found
        return None, None, *_run_again(ctx, grad)


replay: Any = _Replay.apply  # untyped in torch


def _run_again(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Run again on the saved tensors: for a second backward pass, or a second derivative."""
    tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[2:]
    further = torch.is_grad_enabled()
    capture: Capture = ctx.capture
    wanted = [t for t, n in zip(tensors, needed, strict=True) if n]
    with torch.enable_grad(), untouched(capture.inside.buffers):
        out = capture.run(ctx.module, *tensors[: len(capture.given)])
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=further, allow_unused=True))
    return [next(found) if n else None for n in needed]


def _replayable(grad: Tensor) -> bool:
    functorch = torch._C._functorch  # neither vmap has a public test
    return not (
        torch.is_grad_enabled()  # for a second derivative
        or type(grad) is not Tensor
        or functorch.is_legacy_batchedtensor(grad)
        or functorch.is_functorch_wrapped_tensor(grad)
        or (grad.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _off(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> float:
    """Return the relative norm of all differences; nan if a tensor is missing."""
    if [f is None for f in found] != [w is None for w in wanted]:
        return math.nan
    pairs = [
        (f.double(), w.double())
        for f, w in zip(found, wanted, strict=True)
        if f is not None and w is not None
    ]
    off = sum(float((f - w).square().sum()) for f, w in pairs)
    return math.sqrt(off / (sum(float(w.square().sum()) for _, w in pairs) or 1.0))


def _no_ticket() -> None:
    """Stand in for a dead reference."""
