"""Recorded: both graphs of a call, and their replay on the memory that they had."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nxcore.graphs.buffers import new_like
from nxcore.graphs.gradients import Gradients
from nxcore.graphs.pair import backward_of
from nxcore.graphs.recorder import Pool, Recorder


class Recorded:
    """Both graphs of a call, forward and backward, and where they read and write.

    Only the autograd nodes hold the saved tensors, so their memory isn't reused. Other memory may be: of
    inputs and results only the addresses are kept, and they are written or read next to the replay. In a pool
    of its own the backward pass reuses the memory of saved tensors too, once it has read them.

    Parameters
    ----------
    call : callable
        Returns the result of ``count`` tensors.
    held : sequence of Tensor
        These tensors, and the parameters.
    recorder : Recorder
        The recorder of their device.
    written : sequence of Tensor, optional
        Tensors that the forward graph keeps the values of, so that it can be undone.
    alone : bool
        Whether both graphs have a memory pool of their own.

    Attributes
    ----------
    together : int
        The weights whose gradients are one sum.
    norms : int
        The norms that are computed with the sum of an edge or a node.
    groups : str
        How many separable convolutions are computed together, and why others are not, as text.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Tensor]], Tensor],
        held: Sequence[Tensor],
        count: int,
        recorder: Recorder,
        written: Sequence[Tensor] = (),
        *,
        alone: bool = False,
    ) -> None:
        pool = Pool() if alone else None
        kinds = itertools.groupby(sorted(written, key=_kind), key=_kind)
        owned = [list(group) for _, group in kinds]
        self._written = [(group, [torch.empty_like(t) for t in group]) for group in owned]
        self.together, self.norms, self.groups = 0, 0, ""

        def there() -> tuple[list[Tensor], Tensor]:
            with torch.no_grad():
                for group, kept in self._written:
                    torch._foreach_copy_(kept, group)
            given = [new_like(t).requires_grad_(t.requires_grad) for t in held[:count]]
            return given, call(given)

        (given, out), self._there = recorder.capture(there, pool)
        leaves = {i: t for i, t in enumerate([*given, *held[count:]]) if t.requires_grad}

        def back() -> tuple[Tensor, Gradients]:
            (grad,), found = backward_of([out], list(leaves.values()), keeps=not alone)
            return grad, Gradients({i: g for i, g in zip(leaves, found, strict=True) if g is not None})

        (grad, self._gradients), self._back = recorder.capture(back, pool)
        self._nodes = out.grad_fn
        self.given, self.out = [recorder.lying(t) for t in given], recorder.lying(out)
        self.gradient = recorder.lying(grad)
        self._gradients.lie(recorder, len(held))

    def begin(self, tensors: Sequence[Tensor]) -> None:
        """Replay the forward graph, which writes the result to ``out``."""
        torch._foreach_copy_(self.given, list(tensors))
        self._there()

    def undo(self) -> None:
        """Put back what the last replay of the forward graph has written."""
        with torch.no_grad():
            for group, kept in self._written:
                torch._foreach_copy_(group, kept)

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """Replay the backward graph; return copies of the gradients of tensors and parameters."""
        self.gradient.copy_(grad)
        self._back()
        return self._gradients.copies()


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype)
