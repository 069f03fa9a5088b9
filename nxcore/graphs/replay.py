"""Replay: a captured call as a node of autograd; its backward pass may run again in place of a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nxcore.graphs.buffers import untouched
from nxcore.graphs.recorder import Ticket
from nxcore.graphs.snapshot import Inside

Run = Callable[..., Any]


class Replayed(Protocol):
    """A capture, as a node sees it."""

    run: Any
    inside: Inside
    lock: Any
    count: int
    start: Tensor | None

    def refuses(self, needs: tuple[bool, ...]) -> bool:
        """Return whether a replay was begun though parameters need other gradients; undo it."""

    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the result."""

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """Return the gradients of tensors and parameters."""

    def enter(self) -> tuple[int, Ticket]:
        """Return the number of a new replay, and its ticket."""

    def keeps(self, number: int) -> bool:
        """Return whether the values saved by that replay are intact."""

    def again(self, dice: Tensor | None) -> contextlib.AbstractContextManager[None]:
        """Let a run be under the autocast of a replay that began with ``dice``, and draw what that drew."""


class _Replay(torch.autograd.Function):
    """A captured call and its backward pass, which runs again where the capture can't serve it."""

    @staticmethod
    def forward(ctx: Any, capture: Replayed, module: nn.Module, *tensors: Tensor) -> Tensor | None:
        if capture.refuses(ctx.needs_input_grad[2:]):  # which is cheaper than to look at all parameters
            return None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.capture, ctx.module = capture, module
        ctx.number, ctx.ticket = capture.enter()
        out = capture.forward(tensors[: capture.count])
        ctx.start = capture.start
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return None, None, *(None for _ in ctx.needs_input_grad[2:])
        capture: Replayed = ctx.capture
        with capture.lock:
            if replayable(grad) and capture.keeps(ctx.number):
                found = capture.backward(grad)
                ctx.ticket.open = False  # its memory may be overwritten from now on
                return None, None, *found
        return None, None, *_run_again(ctx, grad)


replay: Any = super(torch.autograd.Function, _Replay).apply
"""``_Replay.apply`` without its search for tensors of an ended transform: parts refuse these before."""


def _run_again(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Run again on the saved tensors: for a second backward pass, or a second derivative."""
    tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[2:]
    further = torch.is_grad_enabled()
    capture: Replayed = ctx.capture
    wanted = [t for t, n in zip(tensors, needed, strict=True) if n]
    with torch.enable_grad(), untouched(capture.inside.buffers), capture.again(ctx.start):
        out = capture.run(ctx.module, *tensors[: capture.count])
        found = iter(torch.autograd.grad([out], wanted, [grad], create_graph=further, allow_unused=True))
    return [next(found) if n else None for n in needed]


def replayable(grad: Tensor) -> bool:
    """Return whether a backward graph can take the gradient of a result."""
    functorch = torch._C._functorch  # neither vmap has a public test
    return not (
        torch.is_grad_enabled()  # for a second derivative
        or type(grad) is not Tensor
        or functorch.is_legacy_batchedtensor(grad)
        or functorch.is_functorch_wrapped_tensor(grad)
        or (grad.is_cuda and torch.cuda.is_current_stream_capturing())
    )
