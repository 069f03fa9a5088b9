"""Whole: a search network without cells, whose training steps are replayed as the recorder reads its code.

``nxcore.nas.patch`` alone makes these: dynamo's graph would have the lists' own operations in place of what
they compute together. Any other model is replayed as dynamo's graphs (``nxcore.nn.programs``).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.context import Purpose, in_force
from nxcore.graphs.capture import Capture
from nxcore.graphs.hooks import hooked
from nxcore.graphs.part import Part
from nxcore.graphs.reads import Held, Unclear, reads_of
from nxcore.graphs.recorder import Recorder, recorder_of
from nxcore.graphs.whole import Whole
from nxcore.interop import internals
from nxcore.nn.exchange import AWAKE, OF, PATCHED, Plain, kind
from nxcore.program.compilers.entrants import Entrants
from nxcore.program.memory import kept
from nxcore.program.replay import ranks
from nxcore.session import default

PACKAGES = ("torch.", "nxcore.")
"""Packages whose modules aren't read: they depend on their class, their tensors and their arguments alone."""

LOOK = 64
"""After how many calls it is looked for whether more is learnt."""


class ModelWhole(Whole):
    """The part that is a whole network.

    Parameters
    ----------
    model : torch.nn.Module
        The model; no reference to it is kept.
    record : callable
        As of ``Part``.
    unsettled : callable
        ``unsettled(model)`` returns why a capture has to wait; empty if it hasn't.

    Attributes
    ----------
    resting : bool
        Whether a watch over the model's steps lets all calls run.
    pool : int
        The bytes of the device's memory that captures have taken.
    """

    interrupted = 0
    """Steps that say nothing of how fast others are: a replay is compared before it serves, and not after."""

    @property
    def made(self) -> int:
        """The captures so far."""
        return self._made

    def __init__(
        self,
        model: nn.Module,
        record: Callable[[torch.device], Recorder | None],
        unsettled: Callable[[nn.Module], str],
    ) -> None:
        super().__init__(_run, names_of, record)
        self.resting, self.pool, self._unsettled = False, 0, unsettled
        self.entrants = Entrants(())
        self.plainly = Plain
        self._of = weakref.ref(model)

    @property
    def stands(self) -> bool:
        """Whether calls are replayed, or may be."""
        return bool(self._captures) or not self._refusal

    @property
    def report(self) -> list[str]:
        """Its state, as a line."""
        return [f"the model: {self.state}"]

    def end(self, why: str) -> None:
        """Run all calls from now on; free the captures. Parts within the model wait no longer."""
        self.leave(why)
        self.clear()
        if self.pool:
            torch.cuda.empty_cache()
            self.pool = 0

    def call(self, module: nn.Module, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replay the call if its signature was captured; otherwise run it, by ``call``."""
        runs = self.resting or kwargs or not (args and module.training and torch.is_grad_enabled())
        if runs or not self.stands or not all(isinstance(arg, Tensor) for arg in args):
            return call(*args, **kwargs)
        if self._record(args[0].device) is None or module is not self._of() or hooked(module):
            return call(*args)
        if internals.backward_pass() != -1 or ranks() > 1:
            return call(*args)
        return self(module, *args)

    def _capture(self, key: Any, module: nn.Module, tensors: Sequence[Tensor], ran_s: float) -> str:
        if why := self._unsettled(module):
            self._waits = True
            return why
        return super()._capture(key, module, tensors, ran_s)

    def _made_of(
        self, module: nn.Module, tensors: Sequence[Tensor], recorder: Recorder, ran_s: float
    ) -> Capture:
        torchs, self._torchs = self._torchs, None
        given, before = (recorder, self._reads(module), ran_s, torchs, self._dice), kept(tensors[0].device)
        try:
            return Capture(self.run, module, tensors, *given, counts_as=_counts_as)
        finally:
            self.pool += max(0, kept(tensors[0].device) - before)


def parts_of(model: nn.Module) -> Iterator[Part]:
    """Yield the parts of the modules within ``model``; its own first, since a network has thousands."""
    for module in model.modules():
        yield from [value for value in vars(module).values() if isinstance(value, Part)]


def recorder_for(device: torch.device) -> Recorder | None:
    """Return the recorder of a device; None where it has no graphs."""
    return recorder_of(device)


def available() -> bool:
    """Return whether a device has graphs."""
    return torch.cuda.is_available()


def names_of(model: nn.Module) -> list[Held]:
    """Return the names that the code of ``model`` and its modules reads, with their values.

    Raises
    ------
    Unclear
        If it may depend on more, or change something.
    """
    found: dict[type, list[Held]] = {}
    for name, module in model.named_modules():
        held, cls = vars(module), kind(module)
        cls = vars(cls).get(PATCHED, cls)  # a trial has shown that both do the same
        try:
            if "forward" in held:
                raise Unclear("its forward is an attribute")
            if held.get("_compiled_call_impl") is not None:
                raise Unclear("it is compiled")
            if not (cls.__module__ + ".").startswith(PACKAGES):
                found[cls] = reads_of(module, cls)
        except Unclear as why:
            raise Unclear(f"{name}: {why}" if name else str(why)) from None
    return [held for names in found.values() for held in names]


def _run(module: nn.Module, *tensors: Tensor) -> Any:
    """Return the result of the model's own call, without its watch."""
    call: Any = kind(module).__call__
    return call(module, *tensors)


def beside() -> contextlib.AbstractContextManager[None]:
    """Return a context for a capture: what it doesn't know is learnt beside the program, not in its call."""
    session = default()
    if session.learning:
        return in_force(purpose=Purpose.SHOW)
    if session.chooser.in_force == "measure":
        return in_force(policy="auto")  # a training goes on meanwhile, and the model is captured again
    return contextlib.nullcontext()


def _counts_as(cls: type) -> type:
    """Return the class of a module without a watch, and when it is awake."""
    own: type[nn.Module] = vars(cls).get(OF, cls)
    return AWAKE.get(own, own)
