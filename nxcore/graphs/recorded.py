"""Recorded: both graphs of a call, and their replay on the memory that they had."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nxcore.graphs.buffers import new_like
from nxcore.graphs.pair import backward_of
from nxcore.graphs.recorder import Pool, Recorder
from nxcore.spec.problem import TensorMeta

SMALL = 2**20
"""The most bytes of gradients that are copied together."""


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
    held : int
        The bytes that both graphs keep.
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
        self.held, self.together, self.norms, self.groups = 0, 0, 0, ""

        def there() -> tuple[list[Tensor], Tensor]:
            with torch.no_grad():
                for group, kept in self._written:
                    torch._foreach_copy_(kept, group)
            given = [new_like(t).requires_grad_(t.requires_grad) for t in held[:count]]
            return given, call(given)

        (given, out), self._there = recorder.capture(there, pool)
        leaves = {i: t for i, t in enumerate([*given, *held[count:]]) if t.requires_grad}

        def back() -> tuple[Tensor, dict[int, Tensor], list[Tensor]]:
            (grad,), found = backward_of([out], list(leaves.values()), keeps=not alone)
            gradients = {i: g for i, g in zip(leaves, found, strict=True) if g is not None}
            small = _small(gradients)
            return grad, gradients, [torch.cat([_flat(gradients[i]) for i in own]) for own in small]

        (grad, gradients, flats), self._back = recorder.capture(back, pool)
        small = _small(gradients)
        self._nodes = out.grad_fn
        self.given, self.out = [recorder.lying(t) for t in given], recorder.lying(out)
        self.gradient = recorder.lying(grad)
        copied = {i for own in small for i in own}
        single = {i: recorder.lying(g) for i, g in gradients.items() if i not in copied}
        self._single = [single.get(i) for i in range(len(held))]
        self._flats = []
        for own, flat in zip(small, flats, strict=True):
            groups = itertools.groupby(own, key=lambda i: _form(gradients[i]))
            alike = [(list(group), *form, math.prod(form[0])) for form, group in groups]
            self._flats.append((recorder.lying(flat), alike))

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
        found = [g if g is None else g.clone() for g in self._single]
        for lying, alike in self._flats:
            begin, flat = 0, lying.clone()
            for places, shape, strides, size in alike:
                owned = flat.as_strided((len(places), *shape), (size, *strides), begin).unbind(0)
                for place, own in zip(places, owned, strict=True):
                    found[place] = own
                begin += len(places) * size
        return found


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype)


def _small(gradients: Mapping[int, Tensor]) -> list[list[int]]:
    """Return the indices of gradients that are copied together, by dtype, grouped by shape and layout.

    Their dtype needn't be that of the result: under autocast a result of a half type has parameters, and so
    gradients, in float32.
    """
    small = [i for i, g in gradients.items() if g.nbytes <= SMALL]
    small.sort(key=lambda i: (_kind(gradients[i]), _form(gradients[i]), i))
    kinds = itertools.groupby(small, key=lambda i: _kind(gradients[i]))
    return [list(group) for _, group in kinds]


def _form(gradient: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and the strides of a copy: of a dense gradient its own.

    Autograd copies a gradient once more whose layout isn't that of its parameter.
    """
    shape = tuple(gradient.shape)
    return shape, TensorMeta.of(torch.empty_like(gradient, device="meta")).strides


def _flat(gradient: Tensor) -> Tensor:
    """Return the elements in the order of the copy's memory."""
    strides = _form(gradient)[1]
    order = sorted(range(gradient.ndim), key=lambda dim: strides[dim], reverse=True)
    return gradient.permute(order).reshape(-1)
