"""Replay: a captured call as a node of autograd; its backward pass may run again in place of a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nxcore.graphs.buffers import untouched
from nxcore.graphs.pair import viewed
from nxcore.interop.internals import batched

if TYPE_CHECKING:
    from nxcore.graphs.capture import Capture

Run = Callable[..., Any]


class _Replay(torch.autograd.Function):
    """A captured call and its backward pass, which runs again where the capture can't serve it."""

    @staticmethod
    def forward(ctx: Any, capture: Capture, module: nn.Module, *tensors: Tensor) -> Tensor | None:
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
        capture: Capture = ctx.capture
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
    capture: Capture = ctx.capture
    with torch.enable_grad(), untouched(capture.inside.buffers), capture.again(ctx.start):
        own = viewed(tensors)
        wanted = [t for t, n in zip(own, needed, strict=True) if n]
        out = capture.run(ctx.module, *own[: capture.count])
        found = iter(torch.autograd.grad([out], wanted, [grad], create_graph=further, allow_unused=True))
    return [next(found) if n else None for n in needed]


def replayable(grad: Tensor) -> bool:
    """Return whether a backward graph can take the gradient of a result."""
    return not (
        torch.is_grad_enabled()  # for a second derivative
        or type(grad) is not Tensor
        or batched(grad)
        or (grad.is_cuda and torch.cuda.is_current_stream_capturing())
    )
