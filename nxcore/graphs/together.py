"""Together: the gradients of all weights of a captured call are added up in one launch.

The blocks of a kernel leave shares of a weight's gradient, and a launch of a few microseconds adds them up. A
cell of a search network has 84 such kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nxcore.call.wrappers import preferring
from nxcore.context import PREFERENCE
from nxcore.graphs.branches import differentiated
from nxcore.graphs.late import LATE
from nxcore.session import default
from nxcore.spec.sums import SUMS, Gradients

MOST = 2**28
"""The most bytes of shares that one call keeps; the kernels after that add up their own."""


def weights_of(*weights: Tensor) -> tuple[Tensor, ...]:
    """Return ``weights`` for an operator; in a captured call, their gradients may be summed with others'."""
    waiting = None if torch.compiler.is_compiling() else LATE.get()
    if waiting is None or waiting.module is None:
        return weights
    if waiting.sums is None:
        waiting.sums = Together(waiting.module.parameters())
    return tuple(waiting.sums.reader(weight) for weight in weights)


class Left(NamedTuple):
    """The shares that a kernel left, how it adds them up, its gradients, and whether these are zeros."""

    shares: Tensor
    finish: Callable[[], Gradients]
    given: Gradients
    waits: bool


class Together:
    """The weights of a call, with one autograd node that gets all their gradients.

    Only a graph that is being captured leaves sums to that node: there no call is checked, timed or measured.
    In a run before it each kernel adds up its own, and the node has the kernel chosen that adds up all.

    Parameters
    ----------
    weights : iterable of Tensor
        Those without a gradient are left out.

    Attributes
    ----------
    count : int
        The number of weights whose gradients were one sum in the last backward pass.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        held = [w for w in weights if differentiated(w)]
        self.count, self._bytes = 0, 0
        self._left: dict[tuple[int, ...], Left] = {}
        self._add_up = preferring(PREFERENCE.get(), _add_up)  # autograd's thread has no context of the call's
        given = _together(self, *held) if held else ()
        self._readers: dict[int, Tensor | None] = {id(w): own for w, own in zip(held, given, strict=True)}

    def reader(self, weight: Tensor) -> Tensor:
        """Return ``weight`` for its first reader; others get itself: autograd adds up their gradients."""
        if id(weight) not in self._readers:
            return weight
        own, self._readers[id(weight)] = self._readers[id(weight)], None
        return weight if own is None else own

    def end(self) -> None:
        """Hand out no more weights: they hold the node, and the node holds this."""
        self._readers.clear()

    def leave(self, shares: Tensor, weights: Sequence[Tensor], finish: Callable[[], Gradients]) -> Gradients:
        """Keep shares; return tensors that stand for the gradients, or the gradients outside of a capture."""
        if self._bytes + shares.nbytes > MOST:
            return finish()
        self._bytes += shares.nbytes
        zero = _zero(shares)
        if zero is None or not capturing(shares):
            left = Left(shares, finish, finish(), waits=False)
        else:
            left = Left(shares, finish, tuple(zero.expand(w.shape) for w in weights), waits=True)
        self._left[tuple(w.output_nr for w in weights)] = left
        return left.given

    def gradients(self, grads: list[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of all weights, sums in place of the zeros that stand for them."""
        left, self._left, self._bytes, self.count = self._left, {}, 0, 0
        for one in left.values():
            if one.shares.is_cuda:  # of another stream, where the module's code has several
                one.shares.record_stream(torch.cuda.current_stream(one.shares.device))
        summed = self._add_up([one.shares for one in left.values()]) if len(left) > 1 else None
        each = [None] * len(left) if summed is None else summed
        for (places, one), sums in zip(left.items(), each, strict=True):
            if not one.waits:
                continue
            if sums is None:
                parts: Sequence[Tensor] = one.finish()
            else:
                parts, self.count = sums.split([g.numel() for g in one.given]), self.count + len(places)
            for place, zeros, part in zip(places, one.given, parts, strict=True):
                own, given = part.view(zeros.shape), grads[place]
                if given is not None and given.data_ptr() != zeros.data_ptr():
                    own = given + own  # that of a second derivative
                grads[place] = own
        return grads


def capturing(shares: Tensor) -> bool:
    """Return whether a graph is being captured, in which shares are a kernel's result."""
    return shares.is_cuda and torch.cuda.is_current_stream_capturing()


def _add_up(xs: list[Tensor]) -> Sequence[Tensor] | None:
    """Return the column sums of matrices by a kernel in one launch, if one was chosen."""
    found = _sums().by_kernel(xs)
    return None if found is None else found.split([x.shape[1] for x in xs])


_zeros: dict[Any, Tensor] = {}


def _zero(x: Tensor) -> Tensor | None:
    """Return a zero on the device of ``x``; None while the first one could only be captured."""
    key = x.device, x.dtype
    if key not in _zeros:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        _zeros[key] = x.new_zeros(())
    return _zeros[key]


@functools.cache
def _sums() -> Any:
    return default().op("column_sums")


class _Together(torch.autograd.Function):
    """Each weight, with its memory; their gradients come together."""

    @staticmethod
    def forward(ctx: Any, together: Together, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        setattr(ctx, SUMS, together)
        return tuple(w.detach() for w in weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *getattr(ctx, SUMS).gradients(list(grads))


_together: Any = _Together.apply  # untyped in torch
