"""A step of the weights: gradients are clipped, then SGD moves the weights; one CUDA graph on a GPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.errors import CaptureError
from nxcore.graphs.graphed import Graphed


class Update:
    """A step of an optimizer with momentum on the weights that have a gradient.

    By single calls, 1,400 weights take the host several milliseconds; the device needs a tenth of that. So
    the step is replayed where gradients lie in the same memory at each call, and run where a capture fails.
    The optimizer has one group, whose learning rate stays a number; a replay reads it anew. ``clip`` is the
    largest norm of all gradients.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, clip: float) -> None:
        self.optimizer, self.clip = optimizer, clip
        self.graphed = True
        self._replay: Graphed | None = None
        self._of: Any = None

    def __call__(self, gradients: Sequence[Tensor | None] | None) -> None:
        """Make one step; ``gradients`` are those that a graph leaves in one place, and then one object."""
        replay = None if gradients is None or not self.graphed else self._made(gradients)
        if replay is None:
            self._step(self._moved())
            return
        weights, rate = self._moved(), self.optimizer.param_groups[0]["lr"]
        try:
            replay(torch.full((), rate, device=weights[0].device))
        except CaptureError:
            self.graphed = False
            self._step(weights)

    def _made(self, gradients: Sequence[Tensor | None]) -> Graphed | None:
        """Return the graph for these gradients; None before there are momenta."""
        weights = self._moved()
        momenta = [self.optimizer.state[p].get("momentum_buffer") for p in weights]
        if not all(isinstance(momentum, Tensor) for momentum in momenta):
            return None
        if self._of is None or self._of[0] is not gradients or self._of[1] is not momenta[0]:
            # The step before the capture is undone, and it changes gradients too.
            state = [*weights, *momenta, *(p.grad for p in weights)]
            self._replay = Graphed(self._at, warmup=1, limit=1, state=[t for t in state if t is not None])
            self._of = gradients, momenta[0]
        return self._replay

    def _moved(self) -> list[nn.Parameter]:
        return [p for p in self.optimizer.param_groups[0]["params"] if p.grad is not None]

    def _at(self, rate: Tensor) -> None:
        """Make a step with a learning rate that is a tensor."""
        (group,) = self.optimizer.param_groups
        before, group["lr"] = group["lr"], rate
        try:
            self._step(self._moved())
        finally:
            group["lr"] = before

    def _step(self, weights: list[nn.Parameter]) -> None:
        nn.utils.clip_grad_norm_(weights, self.clip)
        self.optimizer.step()
