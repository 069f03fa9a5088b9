"""Audit: a call by replay and by plain torch, of which the caller gets the plain one's results."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nxcore.errors import CaptureError
from nxcore.graphs.buffers import untouched
from nxcore.graphs.dice import hosts, put_hosts_back
from nxcore.graphs.part import REPLAYS
from nxcore.graphs.recorder import Recorder
from nxcore.interop.internals import gradients
from nxcore.program.rounding import Rounded, judged

FACTOR, EVERY = 4, REPLAYS
"""How many times as late each audit comes as the one before; and the most replays between two of them."""

Convict = Callable[[str], None]
"""Called with what differs."""


class Audits:
    """Which replays are audited: the first one, then ever fewer, but one of ``EVERY`` in any case.

    Attributes
    ----------
    skipped : int
        The audits that were left out, since there was too little memory.
    calls : int
        The replays so far.

    Examples
    --------
    >>> audits = Audits()
    >>> [number for number in range(1, 200) if audits.due()]
    [1, 5, 25, 125]
    """

    def __init__(self) -> None:
        self.skipped, self.calls, self._next = 0, 0, 1

    def due(self, room: Callable[[], bool] = lambda: True) -> bool:
        """Count a replay; return whether it is to be audited: not without ``room`` in memory."""
        self.calls += 1
        if self.calls < self._next:
            return False
        self._next = self.calls + min(FACTOR * self.calls, EVERY)
        if room():
            return True
        self.skipped += 1
        return False

    @property
    def report(self) -> str:
        """The number of audits that were left out, as text; empty if none was."""
        return f"; {self.skipped} audits left out, as memory is short" if self.skipped else ""


def audited(
    plain: Callable[[], Any],
    ours: Callable[[], Any],
    leaves: Sequence[Tensor],
    buffers: Iterable[Tensor],
    recorder: Recorder,
    audits: Audits,
    convict: Convict,
) -> Any:
    """Return the result of ``plain``, compared with that of ``ours``; gradients are compared once they come.

    Where both differ, ``plain`` runs again on rounded tensors: what that makes is no fault of ``ours``.
    Where ``plain`` runs out of memory, the result is that of ``ours``.

    Parameters
    ----------
    plain, ours : callable
        The call, in two ways. Both begin with the same random numbers and buffers. ``ours`` returns None
        where it has run as ``plain`` does.
    leaves : sequence of Tensor
        What the call computes with, and may need a gradient of.
    buffers : iterable of Tensor
        Tensors that the call may write.
    recorder : Recorder
        The recorder of their device.
    audits : Audits
        Counts an audit that is left out, since there was too little memory for that second run.
    convict : callable
        Called with what differs.
    """
    held = list(buffers)
    dice, host = recorder.dice(), hosts()
    rounded = Rounded(plain, leaves, held, recorder)
    with untouched(held):
        found = ours()
        after = [t.detach().clone() for t in held]
    recorder.put_back(dice)
    put_hosts_back(host)
    if found is None:  # a checkpoint within the call would count each backward pass
        return plain()
    results: list[Any] = []
    with contextlib.suppress(torch.OutOfMemoryError):  # whose frames hold what the run has computed
        results.append(plain())
    if not results:
        found, after = None, []
        rounded.begin()
        torch.cuda.empty_cache()
        recorder.put_back(dice)
        put_hosts_back(host)
        return ours()
    (result,) = results
    outs, others = _tensors(result), _tensors(found)
    if len(outs) != len(others) or not outs:
        convict("its results can't be compared")
        return result
    judge = _Judge(rounded, audits, convict)
    states = [t.detach().clone() for t in held]
    if judge.convicts("results", others, outs, _tensors) or judge.convicts(
        "buffers", after, states, lambda _: [t.clone() for t in held]
    ):
        return result
    wanted = [t for t in leaves if t.requires_grad]
    places = [i for i, t in enumerate(outs) if t.requires_grad]
    if not (torch.is_grad_enabled() and wanted and places):
        return result
    pair = _Pair(outs, others, places, wanted, judge)
    # untyped in torch
    served = iter(_Compared.apply(pair, *pair.plain))  # type: ignore[no-untyped-call]
    return _mapped(lambda t: next(served) if t.requires_grad else t, result)


def _mapped(function: Callable[[Tensor], Tensor], result: Any) -> Any:
    """Return a result with other tensors, also in dataclasses."""

    def other(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            return leaf
        made = copy.copy(leaf)
        for field in dataclasses.fields(leaf):
            object.__setattr__(made, field.name, _mapped(function, getattr(leaf, field.name)))
        return made

    return pytree.tree_map(other, result)


def _tensors(result: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(lambda t: found.append(t) or t, result)  # type: ignore[func-returns-value]  # it is None
    return found


class _Judge:
    """Convicts a replay whose difference from plain torch is more than rounding alone makes."""

    def __init__(self, rounded: Rounded, audits: Audits, convict: Convict) -> None:
        self._rounded, self._audits, self.convict = rounded, audits, convict

    def convicts(
        self,
        what: str,
        found: Sequence[Tensor],
        wanted: Sequence[Tensor],
        of: Callable[[Any], Sequence[Tensor]],
    ) -> bool:
        """Return whether a difference is a fault; ``of`` returns such tensors of another run."""
        try:
            why = judged(what, found, wanted, of, self._rounded)
        except torch.OutOfMemoryError:
            self._audits.skipped += 1
            return False
        if why:
            self.convict(f"a replay differs from plain torch by {why}")
        return bool(why)


class _Pair:
    """The results of both ways, until their gradients are compared."""

    def __init__(
        self,
        plain: list[Tensor],
        ours: list[Tensor],
        places: list[int],
        leaves: Sequence[Tensor],
        judge: _Judge,
    ) -> None:
        self.plain, self.ours = [plain[i] for i in places], [ours[i] for i in places]
        self._places, self._leaves, self._judge = places, leaves, judge

    def compare(self, grads: Sequence[Tensor | None]) -> None:
        """Differentiate both, and compare the gradients of the leaves."""
        used = [i for i, g in enumerate(grads) if g is not None]
        given = [g for g in grads if g is not None]
        if not used or torch.is_grad_enabled():
            return
        try:
            found = gradients([self.ours[i] for i in used], self._leaves, given)
        except (CaptureError, RuntimeError) as error:  # such as of a buffer that the plain call has written
            self._judge.convict(f"its gradients can't be compared: {error}")
            return
        wanted = gradients([self.plain[i] for i in used], self._leaves, given, retain_graph=True)
        self.ours = []  # with what they have saved
        there = [i for i, w in enumerate(wanted) if w is not None]
        if there != [i for i, f in enumerate(found) if f is not None]:
            self._judge.convict("a replay has other gradients than plain torch")
            return

        def chosen(grads: Sequence[Tensor | None]) -> list[Tensor]:
            return [g for g in map(grads.__getitem__, there) if g is not None]

        def of(again: Any) -> list[Tensor]:
            outs = _tensors(again)
            return chosen(gradients([outs[self._places[i]] for i in used], self._leaves, given))

        self._judge.convicts("gradients", chosen(found), chosen(wanted), of)


class _Compared(torch.autograd.Function):
    """The results of plain torch; a backward pass from them compares the gradients first."""

    @staticmethod
    def forward(ctx: Any, pair: _Pair, *outs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.pair = pair
        return tuple(out.clone() for out in outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        pair, ctx.pair = ctx.pair, None
        if pair is not None:
            pair.compare(grads)
        return None, *grads
