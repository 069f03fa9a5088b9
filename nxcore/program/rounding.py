"""Rounding: by how much a call differs from itself where its numbers have other last digits.

A deep network in half precision multiplies what its first layers round. So two right ways to compute it may
differ by more than any fixed bound. The difference that rounding alone makes is measured instead.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import CaptureError
from nxcore.graphs.buffers import untouched
from nxcore.graphs.dice import hosts, put_hosts_back, thrown
from nxcore.graphs.outcome import AGREES, ROUGH, off
from nxcore.graphs.recorder import Recorder
from nxcore.interop import autocast

FACTOR = 2.0
"""How many times as far as rounding alone makes it, one tensor of a right replay may be."""

TF32 = 2.0**-11
"""The rounding of a factor of convolutions and products, where torch may take 11 bits of it."""


def differ(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return by how much tensors differ; infinite if their forms do, or one of both alone isn't finite."""
    pairs = list(zip(found, wanted, strict=True))
    if any(f.shape != w.shape or f.dtype != w.dtype or f.requires_grad != w.requires_grad for f, w in pairs):
        return float("inf")
    with torch.no_grad():
        exact = [(f, w) for f, w in pairs if not (f.is_floating_point() or f.is_complex())]
        if not all(torch.equal(f, w) for f, w in exact):
            return float("inf")
        rest = [(f, w) for f, w in pairs if f.is_floating_point()]
        if not rest:
            return 0.0
        apart = off([f for f, _ in rest], [w for _, w in rest])
        if apart == apart and apart != float("inf"):
            return apart
        # A loss that has overflowed is no error of a replay that has overflowed too.
        rest = [(f.nan_to_num(1.0, 2.0, -2.0), w.nan_to_num(1.0, 2.0, -2.0)) for f, w in rest]
        return off([f for f, _ in rest], [w for _, w in rest])


def fault(found: Sequence[Tensor], again: Sequence[Tensor], wanted: Sequence[Tensor]) -> str:
    """Return what speaks against a result that differs; empty if rounding alone makes as much.

    Of all tensors together that is no more than ``ROUGH`` in any case. Of one alone it may be more: that of a
    dropped gradient is 1, of which the norm of all shows little.
    """
    apart, rounding = differ(found, wanted), differ(again, wanted)
    if not apart <= max(AGREES, min(ROUGH, rounding if math.isfinite(rounding) else 0.0)):
        return f"where rounding alone makes {rounding:.2g}"
    for own, other, right in zip(found, again, wanted, strict=True):
        one, moves = differ([own], [right]), differ([other], [right])
        if not one <= max(ROUGH, FACTOR * moves):
            return f"and by {one:.2g} of one tensor, where rounding alone makes {moves:.2g}"
    return ""


class Rounded:
    """Runs a call again on rounded arguments.

    Parameters
    ----------
    call : callable
        The call.
    tensors : iterable of Tensor
        What it computes with; those of floating point are rounded.
    buffers : sequence of Tensor
        What it may write, which has the values that it begins with.
    recorder : Recorder
        The recorder of their device; the present random numbers are those that it begins with.
    """

    def __init__(
        self,
        call: Callable[[], Any],
        tensors: Iterable[Tensor],
        buffers: Sequence[Tensor],
        recorder: Recorder,
    ) -> None:
        self._call, self._buffers, self._recorder = call, buffers, recorder
        held = {id(t) for t in buffers}
        self._tensors = [t for t in {id(t): t for t in tensors if id(t) not in held}.values() if _float(t)]
        self._states = [t.detach().clone() for t in buffers]
        self._dice, self._hosts, self._casts = recorder.dice(), hosts(), autocast.state()
        self._learns, self._infers = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def begin(self) -> None:
        """Let the buffers have the values that the call began with."""
        for t, value in zip(self._buffers, self._states, strict=True):
            t.data.copy_(value)

    @contextlib.contextmanager
    def run(self) -> Iterator[Any]:
        """Yield the result; the tensors are as before once the block ends."""
        host = hosts()
        with (
            untouched([*self._tensors, *self._buffers]),
            thrown(self._recorder, self._dice),
            torch.inference_mode(self._infers),
            torch.set_grad_enabled(self._learns),
            autocast.as_in(self._casts),
            autocast.uncached(),
        ):
            try:
                put_hosts_back(self._hosts)
                self.begin()
                self._round()
                yield self._call()
            finally:
                put_hosts_back(host)

    def _round(self) -> None:
        """Multiply each element by another number near 1."""
        least = self._unit()
        with torch.no_grad():
            for number, t in enumerate(self._tensors):
                own = torch.Generator(t.device).manual_seed(number)
                noise = torch.empty(t.shape, device=t.device).uniform_(-1.0, 1.0, generator=own)
                unit = max(least, torch.finfo(t.dtype).eps / 2)
                t.data.copy_(t.to(torch.promote_types(t.dtype, torch.float32)) * (1 + unit * noise))

    def _unit(self) -> float:
        """Return the rounding of the lowest precision that computes."""
        dtypes = {*(t.dtype for t in self._tensors), *(dtype for dtype in self._casts if dtype)}
        least = max((torch.finfo(dtype).eps / 2 for dtype in dtypes), default=0.0)
        fast = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
        return max(least, TF32) if fast and any(t.is_cuda for t in self._tensors) else least


def _float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and type(tensor) in (Tensor, torch.nn.Parameter)


def judged(
    what: str,
    found: Sequence[Tensor],
    wanted: Sequence[Tensor],
    of: Callable[[Any], Sequence[Tensor]],
    rounded: Rounded,
) -> str:
    """Return by how much a result differs, if that is more than rounding makes; else an empty text.

    ``of`` takes the tensors to compare from what ``rounded``, the call of plain torch, yields: that runs only
    where the difference is in doubt, and raises ``torch.OutOfMemoryError`` if it has too little memory.
    """
    apart, why = differ(found, wanted), ""
    if apart <= AGREES:
        return ""
    if apart <= ROUGH:
        try:
            with rounded.run() as again:
                why = fault(found, of(again), wanted)
            if not why:
                return ""
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            why = f"and another run raised {type(error).__name__}"
    return f"{apart:.2g} of its {what}{why and ', '}{why}"


Outcome = tuple[list[Tensor], list[Any], list[Tensor]]
"""Results, gradients, and buffers."""


def check(found: Outcome, ran: Outcome, rounded: Rounded, buffers: Sequence[Tensor]) -> None:
    """Raise if a replay has other results, gradients or buffers than a run."""
    there = [i for i, g in enumerate(ran[1]) if g is not None]
    if there != [i for i, g in enumerate(found[1]) if g is not None]:
        raise CaptureError("a replay has other gradients than a run")

    def chosen(grads: Sequence[Any]) -> list[Tensor]:
        return [grads[i] for i in there]

    apart = (
        judged("results", found[0], ran[0], lambda again: again[0], rounded),
        judged("gradients", chosen(found[1]), chosen(ran[1]), lambda a: chosen(a[1]), rounded),
        judged("buffers", found[2], ran[2], lambda _: [t.clone() for t in buffers], rounded),
    )
    if any(apart):
        raise CaptureError(f"a replay differs from a run, by {' and '.join(filter(None, apart))}")
