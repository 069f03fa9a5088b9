"""Entrants: modes and backends of ``torch.compile`` that a user lets race against a model's replays.

A watch over the model's steps races one at a time (``nxcore.nn.steps``). Before that the graph's signatures
are compiled, and some of their calls are served by it: the first one is an audit.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.graphs.buffers import untouched
from nxcore.graphs.dice import thrown
from nxcore.program.audit import Audits, audited
from nxcore.program.compilers.beside import Order, copies
from nxcore.program.memory import leave, spare
from nxcore.program.recording import Places, Recording

WARM = 4
"""Calls that an entrant serves before it is raced; the first is an audit, and the next ones may capture."""

_log = logging.getLogger(__name__)


class Entrants:
    """The entrants of a model, by mode of its calls: training or evaluation, under autocast or not.

    Parameters
    ----------
    names : sequence of str
        Modes and backends.

    Attributes
    ----------
    mode : hashable
        The mode of the present call.
    serving : str
        The name of the one that serves calls now; empty if none does.
    lost : dict
        Mode and name -> why it is dropped.
    won : dict
        Mode -> the name of the one that has won, and by how much.
    ended : str
        Why none is raced; empty if they are.
    works : int
        Calls in which something was compiled or warmed.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.serving, self.works, self.ended = names, "", 0, ""
        self.mode: Hashable = None
        self.lost, self.won = dict[tuple[Hashable, str], str](), dict[Hashable, tuple[str, str]]()
        self.entries = weakref.WeakSet[Entry]()

    def open(self, mode: Hashable) -> str:
        """Return the first one that isn't decided in a mode; empty if all are."""
        best = self.won.get(mode, ("", ""))[0]
        if self.ended:
            return ""
        return next((n for n in self.names if n != best and (mode, n) not in self.lost), "")

    def ready(self, mode: Hashable) -> str:
        """Return the name of one that may be raced now: it serves all signatures that were met."""
        name = self.open(mode)
        met = [entry.warmed(name) for entry in self.entries if entry.mode == mode]
        return name if met and all(met) else ""

    @property
    def warms(self) -> bool:
        """Whether one is compiled that hasn't served as many calls of the present mode as it has to."""
        name = self.open(self.mode)
        return any(entry.mode == self.mode and entry.warms(name) for entry in self.entries)

    @property
    def over(self) -> bool:
        """Whether none serves, or may serve, a signature that was met."""
        return not any(e.mode in self.won or self.open(e.mode) for e in self.entries)

    def raced(self, present: frozenset[str], other: frozenset[str]) -> set[str]:
        """Return those that are in one of two sets alone."""
        return {*self.names} & (present ^ other)

    def settle(self, mode: Hashable, names: Iterable[str], kept: frozenset[str], why: str) -> None:
        """Note which of them are kept, and have won; drop the others."""
        for name in names:
            if name in kept:
                self.won[mode] = name, why
            else:
                self.drop(why, name, mode)

    def drop(self, why: str, name: str, mode: Hashable) -> None:
        """Let one serve no call of a mode any more; free its memory."""
        self.lost.setdefault((mode, name), why)
        for entry in [e for e in self.entries if e.mode == mode]:
            entry.drop(name)
        if self.won.get(mode, ("", ""))[0] == name:
            del self.won[mode]
        self.serving = ""
        _log.info("entrant %s is dropped: %s", name, why)

    @property
    def report(self) -> Iterator[str]:
        """The state of each, as lines."""
        for name in self.names:
            won = [f"serves, {why}" for own, why in self.won.values() if own == name]
            lost = [f"dropped: {why}" for (_, own), why in self.lost.items() if own == name]
            state = "; ".join(dict.fromkeys([*won, *lost])) or f"not raced: {self.ended or 'waits'}"
            yield f"{name}: {state}"


class Entry:
    """One signature of a graph, by the entrants.

    Parameters
    ----------
    entrants : Entrants
        Those of its model.
    graph : bytes
        The graph, as ``nxcore.program.compilers.beside.packed`` returns it.
    places : Places
        The places of its inputs.
    plain : callable
        Runs it.
    """

    def __init__(
        self, entrants: Entrants, graph: bytes, places: Places, plain: Callable[..., Sequence[Any]]
    ) -> None:
        self._entrants, self._graph, self._places, self._plain = entrants, graph, places, plain
        self.mode, self._orders = entrants.mode, dict[str, Order]()
        self._made, self._audits = dict[str, Compiled](), dict[str, Audits]()
        entrants.entries.add(self)

    @property
    def by(self) -> str:
        """The name of the one that serves; empty if none does."""
        own = self._entrants
        return own.won[self.mode][0] if self.mode in own.won and own.won[self.mode][0] in self._made else ""

    def warmed(self, name: str) -> bool:
        """Return whether one has served as many calls as it has to before it is raced."""
        return name in self._made and self._audits[name].calls >= WARM

    def warms(self, name: str) -> bool:
        """Return whether one is compiled, and hasn't served so many calls."""
        order = self._orders.get(name)
        return name in self._made and not self.warmed(name) if order is None else order.over

    def free(self) -> None:
        """Free all of them, of every name."""
        self._entrants.entries.discard(self)
        for name in self._entrants.names:
            self.drop(name)

    def drop(self, name: str) -> None:
        """Free what one has compiled."""
        self._orders.pop(name, None)
        if (made := self._made.pop(name, None)) is not None:
            made.free()
            leave(made.device)

    def __call__(self, inputs: Sequence[Any], uses: frozenset[int], *given: Any) -> Sequence[Any] | None:
        """Return the results by the entrant whose turn it is; None if there is none.

        ``given`` are the recorder and the memory of the recordings.
        """
        own = self._entrants
        if self.mode != own.mode or not given[1].free:
            return None
        for name in filter(None, (own.open(self.mode), own.serving)):
            try:
                results = self._served(name, inputs, uses, *given)
                if results is not None:
                    return results
            except torch.OutOfMemoryError:
                own.drop("there was too little memory", name, self.mode)
            except Exception as error:  # of a compiler: plain torch shows whether the call itself is wrong
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
                own.drop(why, name, self.mode)
        return None

    def _served(
        self, name: str, inputs: Sequence[Any], uses: frozenset[int], recorder: Any, memory: Any
    ) -> Sequence[Any] | None:
        own, made = self._entrants, self._made.get(name)
        if made is None:
            if not self._graph:
                own.drop("its graph can't be copied", name, self.mode)
                return None
            if name not in self._orders:
                self._orders[name] = Order(self._graph, inputs, self._places.bound, name)
            if not self._orders[name].over:
                return None
            own.works += 1
            how: Any = {"call": self._orders.pop(name).made(), "copies": copies(name), "draws": True}
            made = Compiled(self._plain, inputs, self._places, uses, recorder, memory, **how)
            self._made[name] = made
            self._audits[name] = Audits()
        audits = self._audits[name]
        if not made.holds(inputs):
            self.drop(name)  # it is compiled anew, from what the cache has
            return None
        warms = audits.calls < WARM
        if not (warms or own.serving == name):
            return None
        own.works += warms
        dice = recorder.dice()
        made.keep()
        try:
            if audits.due(lambda: spare(made.device, memory.bytes)):
                return self._audited(name, made, inputs)
            return made(inputs)
        except BaseException:
            recorder.put_back(dice)
            made.put_back()
            raise

    def _audited(self, name: str, made: Compiled, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a run, compared with those of an entrant."""
        found: Sequence[Any] = audited(
            lambda: list(self._plain(*inputs)),
            lambda: made(inputs),
            [inputs[i] for i in self._places.saved],
            made.buffers(inputs),
            made.recorder,
            self._audits[name],
            lambda why: self._entrants.drop(why, name, self.mode),
        )
        return found


class Compiled(Recording):
    """A call, compiled by an entrant, in place of two graphs."""

    def __init__(self, *given: Any, call: Callable[..., Sequence[Any]], copies: bool, **how: Any) -> None:
        self._call, self._copies = call, copies
        super().__init__(*given, **how)

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self._device

    def buffers(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Return the inputs that it may write."""
        return [inputs[i] for i in self.places.buffers]

    def _make(self, inputs: Sequence[Any], own: list[Any]) -> None:
        self.recorder, self._own, self._learns = self._recorder, own, torch.is_grad_enabled()
        self._device = next(t.device for t in inputs if isinstance(t, Tensor))
        self._there, self._held = _stands, (list[Tensor](), list[Tensor]())
        kinds = itertools.groupby(sorted(self.buffers(inputs), key=_kind), key=_kind)
        groups = [[t.data for t in group] for _, group in kinds]
        self._states = [(group, [*map(torch.clone, group)]) for group in groups]
        with untouched(self.buffers(inputs)), thrown(self._recorder, self._recorder.dice()):
            self._met(self._ran(inputs)[0], [])

    def _ran(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the results, differentiable, and the tensors that it was called with."""
        own = list(self._own)
        for i in self.places.given:
            own[i] = inputs[i].detach().requires_grad_(self._learns and inputs[i].requires_grad)
        if self._copies:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(self._learns):
            return list(self._call(*own)), own

    def keep(self) -> None:
        """Note what the buffers have."""
        for group, states in self._states:
            torch._foreach_copy_(states, group)

    def put_back(self) -> None:
        """Let the buffers have that again."""
        for group, states in self._states:
            torch._foreach_copy_(group, states)

    def free(self) -> None:
        """Drop what is compiled: calls that a program still holds run again."""
        super().free()
        self._held, self._own, self._states, self._call = ([], []), [], [], _stands

    def forward(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Return the results, without gradients."""
        self._recorder.turn()
        self.start = self._recorder.dice()
        found, own = self._ran(inputs)
        self._held = [found[i] for i in sorted(self.uses)], [own[i] for i in self.places.leaves]
        return [found[i].detach().clone() if self._copies else found[i].detach() for i in self._at]

    def backward(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients of all inputs."""
        (outs, leaves), self._held = self._held, ([], [])
        each = iter(torch.autograd.grad(outs, leaves, list(grads), allow_unused=True) if outs else ())
        found: list[Tensor | None] = [None] * len(self._own)
        for i in self.places.leaves:
            grad = next(each, None)
            found[i] = grad.clone() if self._copies and grad is not None else grad
        return found


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype)


def _stands(*_: Any) -> Any:
    """Stand in for a graph that isn't captured."""
