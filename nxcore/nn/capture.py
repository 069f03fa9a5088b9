"""Capture: one signature of a module's call as two CUDA graphs, and the way through them."""

# ruff: noqa: SLF001  torch has no public form of what is asked of its internals here

from __future__ import annotations

import functools
import itertools
import math
import operator
import statistics
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.errors import CaptureError
from nxcore.graphs import untouched
from nxcore.layout import overlaps
from nxcore.nn.inside import Inside
from nxcore.nn.recorder import Recorder
from nxcore.problem import TensorMeta

ROUNDS = 7
"""Pairs of runs and replays, by which a capture must be the faster one."""

AGREES = 1e-2
"""By how much of their norm gradients may differ from another run's, which may add up in another order."""

SMALL = 2**20
"""Bytes up to which gradients are copied together."""

Run = Callable[..., Any]
Outcome = tuple[Tensor, Sequence[Tensor | None]]
"""A result, and gradients."""


class Capture:
    """One signature of a module's call, as two graphs.

    Parameters
    ----------
    run, module, tensors
        The call.
    recorder : Recorder
        Of the tensors' device.

    Attributes
    ----------
    gain : float
        How many times as fast as running it a replay is, forward and backward, host and device.

    Raises
    ------
    CaptureError
        If it draws random numbers, doesn't return one plain tensor with a gradient, is of what no graph
        keeps, or answers otherwise.
    """

    def __init__(self, run: Run, module: nn.Module, tensors: Sequence[Tensor], recorder: Recorder) -> None:
        self.run, self.inside, self.lock = run, Inside(module), threading.RLock()
        self._number = 0
        self._open: Callable[[], object] = _nobody
        self.given = [_buffer(t) for t in tensors]
        with untouched(self.inside.buffers), self.inside.aliased() as parameters:
            held = (*self.given, *parameters)
            self._needed = [t.requires_grad for t in held]
            wanted = [t for t in held if t.requires_grad]
            dice = recorder.dice()
            out = recorder.aside(lambda: self._returned(module))
            if not torch.equal(recorder.dice(), dice):
                recorder.put_back(dice)
                raise CaptureError("it draws random numbers")
            _check_leaves(out, wanted)
            self.gradient, self.out = _wave(recorder.shared("gradient", out)), recorder.shared("result", out)
            del out
            run_once = functools.partial(self._run, module, wanted)
            ran = recorder.aside(run_once)
            _check("a second run", recorder.aside(run_once), ran)
            self._record(module, wanted, recorder)
            # As calls do it, with the copies of what goes in and comes out.
            fresh = [t.detach().clone().requires_grad_(t.requires_grad) for t in self.given]
            fresh += [p.detach().requires_grad_(p.requires_grad) for p in parameters]
            replay_once = functools.partial(self._replayed, module, fresh)
            _check("a replay after two runs", recorder.aside(replay_once), ran)
            times = [
                [
                    recorder.seconds(functools.partial(recorder.aside, once))
                    for once in (run_once, replay_once)
                ]
                for _ in range(ROUNDS)
            ]
        self.close(self._number)
        self.ran_ms, self.replayed_ms = (1e3 * statistics.median(t) for t in zip(*times, strict=True))
        self.gain = self.ran_ms / self.replayed_ms

    @property
    def figures(self) -> str:
        """Both times, in words."""
        return f"{self.replayed_ms:.3g} ms there and back, {self.ran_ms:.3g} ms run"

    @property
    def state(self) -> str:
        """What calls of the signature do."""
        return f"replays, {self.gain:.1f}x: {self.figures}"

    @property
    def busy(self) -> bool:
        """Whether somebody may still go back through the last replay, which another would overwrite."""
        return self._open() is not None

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Replay the way there, without a gradient; return the result, which is the caller's own."""
        torch._foreach_copy_(self.given, list(tensors))
        self._there()
        return self.out.clone()

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """Replay the way back; return the gradients of tensors and parameters, the caller's own."""
        self.gradient.copy_(grad)
        self._back()
        found = [g if g is None else g.clone() for g in self._single]
        if self._flat is not None:
            begin, flat = 0, self._flat.clone()
            for places, shape, size in self._alike:
                end = begin + len(places) * size
                for place, own in zip(
                    places, flat[begin:end].view(len(places), *shape).unbind(0), strict=True
                ):
                    found[place] = own
                begin = end
        return found

    def open(self) -> tuple[int, object]:
        """Return the number of a new replay, and what is to live as long as somebody may go back."""
        ticket = _Ticket()
        self._number, self._open = self._number + 1, weakref.ref(ticket)
        return self._number, ticket

    def last(self, number: int) -> bool:
        """Tell whether there was no replay after that of ``number``."""
        return number == self._number

    def close(self, number: int) -> None:
        """Let the next replay overwrite the one of ``number``."""
        if self.last(number):
            self._open = _nobody

    def _returned(self, module: nn.Module) -> Tensor:
        """Run the call; return what it returned, which must be what a replay can return."""
        out = self.run(module, *self.given)
        if type(out) is not Tensor or not out.requires_grad or out.device != self.given[0].device:
            raise CaptureError(
                f"it must return one plain tensor that needs a gradient, got {type(out).__name__}"
            )
        return out

    def _run(self, module: nn.Module, wanted: Sequence[Tensor]) -> Outcome:
        """Run the call and the way back; return the result and the gradients."""
        out = self._returned(module)
        return out.detach(), torch.autograd.grad(out, wanted, self.gradient, allow_unused=True)

    def _replayed(self, module: nn.Module, fresh: Sequence[Tensor]) -> Outcome:
        """Do the same by replays."""
        out = replay(self, module, *fresh)
        wanted = [t for t in fresh if t.requires_grad]
        return out.detach(), torch.autograd.grad(out, wanted, self.gradient.clone(), allow_unused=True)

    def _record(self, module: nn.Module, wanted: Sequence[Tensor], recorder: Recorder) -> None:
        """Capture both ways.

        What was saved for the way back is this capture's between the two replays, and no other's: the nodes
        hold it. Result and gradients are the next replay's, whoever's that is.
        """

        def there() -> Tensor:
            out = self._returned(module)
            with torch.no_grad():
                self.out.copy_(out)
            return out

        out, self._there = recorder.capture(there)
        self._nodes = out.grad_fn
        self._single: list[Tensor | None] = [None] * len(self._needed)
        places = [i for i, needed in enumerate(self._needed) if needed]
        metas = [torch.empty_like(w, device="meta") for w in wanted]
        small = {i for i, m in zip(places, metas, strict=True) if m.dtype is out.dtype and m.nbytes <= SMALL}
        kept = {
            i: recorder.shared(f"gradient of {i}", w)
            for i, w in zip(places, wanted, strict=True)
            if i not in small
        }

        def back() -> tuple[list[int], Tensor | None]:
            found = torch.autograd.grad(out, wanted, self.gradient, retain_graph=True, allow_unused=True)
            together = sorted(
                (
                    (tuple(g.shape), i)
                    for i, g in zip(places, found, strict=True)
                    if g is not None and i in small
                )
            )
            gradients = dict(zip(places, found, strict=True))
            for i, into in kept.items():
                if gradients[i] is not None:
                    into.copy_(gradients[i])
            flat = [gradients[i].reshape(-1) for _, i in together]
            return [i for i in places if gradients[i] is not None], torch.cat(flat) if flat else None

        (used, self._flat), self._back = recorder.capture(back)
        for i, into in kept.items():
            self._single[i] = into if i in used else None
        shapes = {i: tuple(m.shape) for i, m in zip(places, metas, strict=True) if i in small and i in used}
        order = sorted((shape, i) for i, shape in shapes.items())
        self._alike = [
            ([i for _, i in group], shape, math.prod(shape))
            for shape, group in (
                (k, list(g)) for k, g in itertools.groupby(order, key=operator.itemgetter(0))
            )
        ]


def _wave(gradient: Tensor) -> Tensor:
    """Fill with what is no constant, of which a norm's gradient is 0, and is not drawn."""
    wave = torch.arange(gradient.numel(), device=gradient.device).mul(0.7).sin()
    return gradient.copy_(wave.to(gradient.dtype).view(gradient.shape))


def _check_leaves(out: Tensor, wanted: Sequence[Tensor]) -> None:
    """Refuse what depends on a tensor with a gradient that is neither an argument nor the module's."""
    known, seen, nodes = {id(t) for t in wanted}, set(), [out.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable") and id(node.variable) not in known:
            shape = tuple(node.variable.shape)
            raise CaptureError(
                f"its result depends on a tensor of shape {shape} that is neither an argument nor a parameter"
            )
        nodes.extend(before for before, _ in node.next_functions)


def _check(what: str, found: Outcome, ran: Outcome) -> None:
    """Hold an outcome to that of a run of the same values."""
    off = [_off([found[0]], [ran[0]]), _off(found[1], ran[1])]
    if not max(off) <= AGREES:
        raise CaptureError(
            f"{what} differs from the first, by {off[0]:.2g} of the result and {off[1]:.2g} of the gradients"
        )


class _Ticket:
    """What lives as long as somebody may go back through a replay."""

    __slots__ = ("__weakref__",)


class _Replay(torch.autograd.Function):
    """A captured call, and the way back; as a run where what was captured can't serve that."""

    @staticmethod
    def forward(ctx: Any, capture: Capture, module: nn.Module, *tensors: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.capture, ctx.module = capture, module
        ctx.number, ctx.ticket = capture.open()
        return capture.forward(tensors[: len(capture.given)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return None, None, *(None for _ in ctx.needs_input_grad[2:])
        capture: Capture = ctx.capture
        with capture.lock:
            if _replayable(grad) and capture.last(ctx.number):
                found = capture.backward(grad)
                capture.close(ctx.number)
                return None, None, *found
        return None, None, *_run_again(ctx, grad)


replay: Any = _Replay.apply  # which torch leaves untyped


def _run_again(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Go back through a run on what was saved: twice through a graph, or for a second derivative."""
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


def _buffer(tensor: Tensor) -> Tensor:
    """Return a copy that a graph reads in place of ``tensor``, laid out alike where that can be written."""
    meta = TensorMeta.of(tensor)
    copy = torch.empty_like(tensor) if overlaps(meta) else meta.empty()
    with torch.no_grad():
        copy.copy_(tensor)
    return copy.detach().requires_grad_(tensor.requires_grad)


def _off(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> float:
    """Return the norm of all differences in that of all that was wanted; nan where one is missing."""
    if [f is None for f in found] != [w is None for w in wanted]:
        return math.nan
    pairs = [
        (f.double(), w.double())
        for f, w in zip(found, wanted, strict=True)
        if f is not None and w is not None
    ]
    off = sum(float((f - w).square().sum()) for f, w in pairs)
    return math.sqrt(off / (sum(float(w.square().sum()) for _, w in pairs) or 1.0))


def _nobody() -> None:
    """Stand for a reference to what is gone."""
