"""Whole: an accelerated model whose training steps are replayed, each as two CUDA graphs.

A model of many small kernels waits for the host, whatever serves its modules. A replay takes the host two
launches. So the model's own call becomes a part, if a replay certainly does the same: its code and that of
its modules reads nothing but what is tested at each call. Torch serves the calls before the capture.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.context import Purpose, in_force
from nxcore.errors import CaptureError
from nxcore.graphs.capture import Capture
from nxcore.graphs.hooks import hooked
from nxcore.graphs.packed import Packed
from nxcore.graphs.part import AGAIN, Part
from nxcore.graphs.reads import Held, Unclear, reads_of
from nxcore.graphs.recorder import Recorder, recorder_of
from nxcore.graphs.whole import Whole
from nxcore.interop import internals
from nxcore.nn.exchange import AWAKE, OF, PATCHED, Plain, kind
from nxcore.nn.renewal import faster, roomy
from nxcore.program.memory import kept
from nxcore.session import default

PACKAGES = ("torch.", "nxcore.")
"""Packages whose modules aren't read: they depend on their class, their tensors and their arguments alone."""

RENEWALS, LOOK = 2, 64
"""How often a capture is made again once more is learnt, and after how many replays that is looked for."""


class ModelWhole(Whole):
    """The part that is a whole model.

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
    early : bool
        Whether the capture was made while problems were learnt, so that torch serves some that a kernel may.
    pool : int
        The bytes of the device's memory that captures have taken.
    """

    gives_up = False
    copied = 8  # of ever new shapes a copy of all buffers would be a part of each call
    least = 1.02  # a capture keeps about the memory that a step takes

    def __init__(
        self,
        model: nn.Module,
        record: Callable[[torch.device], Recorder | None] = recorder_of,
        unsettled: Callable[[nn.Module], str] = lambda _: "",
    ) -> None:
        super().__init__(_run, names_of, record)
        self.resting, self.pool, self._unsettled = False, 0, unsettled
        self.plainly = Plain
        self._of = weakref.ref(model)
        self.early, self._looked, self._left = False, 0, RENEWALS
        self._names: list[str] | None = None  # of the arguments
        self._older: dict[Any, list[Capture]] = {}  # captures that are being renewed, and their memory
        self._older_pool = 0
        # The places of the results that a loss uses, where not all; and those that it used last, if others.
        self._uses: set[int] | None = None
        self._used: set[int] | None = None

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
        self._older.clear()
        self._free()

    def _free(self) -> None:
        """Return the memory of captures that are gone."""
        if self.pool:
            torch.cuda.empty_cache()
            self.pool = 0

    def call(self, module: nn.Module, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replay the call if its signature was captured; otherwise run it, by ``call``."""
        if self.resting or not (module.training and torch.is_grad_enabled()):
            return call(*args, **kwargs)
        given = self._placed(module, args, kwargs) if kwargs else args
        if not given:
            return call(*args, **kwargs)
        args = given
        if not self.stands or not all(map(_plain, args)):
            return call(*args)
        if self._record(args[0].device) is None or module is not self._of() or apart():
            return call(*args)
        if self._used is not None:
            self._adapt()
        if self.early and self._captures:
            self._looked = (self._looked + 1) % LOOK
            if not (self._looked or default().learning):
                self._renew(args[0].device)
        return self(module, *args)

    def _placed(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in the signature's order; none if one is left out, or hooks see them."""
        if hooked(module):
            return ()
        names = self._names
        if names is None:
            forward = inspect.signature(kind(module).forward).parameters.values()
            names = self._names = [p.name for p in forward if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        order = names[len(args) : len(args) + len(kwargs)]
        return (*args, *map(kwargs.get, order)) if {*order} == {*kwargs} else ()

    def _renew(self, device: torch.device) -> None:
        """Capture again, by the kernels that were learnt since the last capture; keep that until then."""
        with self._lock:
            self.early = False
            if roomy(device, self.pool):
                self._left -= 1
                self._older, pool = {**self._captures}, self.pool
                self._again()
                self._older_pool = pool

    def _settle(self, key: Any, tensors: Sequence[Tensor], why: str) -> str:
        """Keep the capture that was to be renewed, unless there is a faster one; return why there is none."""
        olds, news = self._older.pop(key, []), self._captures.get(key, [])
        old = next((c for c in olds if c.inside.holds() and c.inside.mode == c.inside.mode_now()), None)
        if old is None:
            return why
        device = tensors[0].device
        recorder = self._record(device)
        if why or not news or (recorder and not faster(news[-1], old, tensors, recorder)):
            self._captures[key], self._refusal, self.pool = olds, "", self._older_pool
            if why:  # it had to wait, and may be made later
                self.early, self._left = True, self._left + 1
        del olds, news, old
        kept(device)  # the memory of the other one
        return ""

    def _again(self) -> None:
        """Drop all captures; the next call makes another one."""
        self._waits = True
        self._made -= self.captured
        self._captures.clear()
        self.pool = self._older_pool = 0

    def _due(self, met: int) -> bool:
        return self._waits or (met >= self.settled and (met - self.settled) % AGAIN == 0)

    def _delays(self) -> bool:
        """Return False: torch serves what is being learnt, and another capture has it."""
        return False

    def _ran(self, key: Any, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        found = super()._ran(key, module, tensors)
        if not self._roomy:
            self.leave("there is too little memory for a capture")
        return found

    def _capture(self, key: Any, module: nn.Module, tensors: Sequence[Tensor], ran_s: float) -> str:
        if why := self._unsettled(module):
            why = self._settle(key, tensors, why)
            self._waits = bool(why)
            return why
        for part in parts_of(module):
            part.outer = part.outer or self
        with beside():
            why = super()._capture(key, module, tensors, ran_s)
        why = self._settle(key, tensors, why)
        self._waits = bool(why)
        if self._refusal and not self._captures:
            self._free()
        return why

    def _partly(self, used: set[int]) -> None:
        """Note which results a loss uses, in a thread of autograd's that may not wait for a call."""
        self._used = used

    def _adapt(self) -> None:
        """Capture again where a loss uses some results alone; end replays where it doesn't always."""
        with self._lock:
            used, self._used = self._used, None
            if self._uses is not None:
                self.end("its losses use other results than before")
            else:
                self._uses = used
                self._older.clear()
                self._again()

    def _exactly(self, module: nn.Module, tensors: Sequence[Tensor], found: Any) -> Tensor | None:
        if not isinstance(found, Tensor):
            with contextlib.suppress(CaptureError), torch.no_grad():
                found = Packed(lambda *_: found)(module, *tensors)
        return super()._exactly(module, tensors, found)

    def _made_of(
        self, module: nn.Module, tensors: Sequence[Tensor], recorder: Recorder, ran_s: float
    ) -> Capture:
        torchs, self._torchs = self._torchs, None
        device, names = tensors[0].device, self._reads(module)
        default().chooser.survey.spare = 0  # torch serves what isn't known, and no step waits for it
        before, run = kept(device), Packed(self.run, self._uses, self._partly)
        try:
            made = Capture(
                *(run, module, tensors, recorder, names, ran_s, torchs, self._dice),
                counts_as=_counts_as,
            )
            made.unpack = run.unpack
        finally:
            after = kept(device)
        self.pool += max(0, after - before)
        self.early = self._left > 0 and default().learning
        return made


class Calls:
    """A watch that compares nothing: a model's calls are replayed, no more.

    Parameters
    ----------
    whole : ModelWhole or ModelProgram
        What replays them.
    """

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def run(
        self, _model: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return ``call(*args, **kwargs)``."""
        return call(*args, **kwargs)


def whole_for(
    model: nn.Module, unsettled: Callable[[nn.Module], str] = lambda _: ""
) -> ModelWhole | str | None:
    """Return what replays the calls of ``model``; or why nothing does. None where there are no graphs.

    ``unsettled`` is as of ``ModelWhole``.
    """
    if not available() or next(model.children(), None) is None:
        return None
    if next(parts_of(model), None) is not None:
        return "parts of it may be"
    try:
        names_of(model)
    except Unclear as why:
        return str(why)
    return ModelWhole(model, recorder_of, unsettled)


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


def _plain(value: Any) -> bool:
    return isinstance(value, Tensor)


def apart() -> bool:
    """Return whether a call is within a backward pass, or of a step of several ranks.

    These exchange gradients while others are computed; of a replay all come at its end.
    """
    spread = torch.distributed
    return internals.backward_pass() != -1 or (
        spread.is_available() and spread.is_initialized() and spread.get_world_size() > 1
    )


def _counts_as(cls: type) -> type:
    """Return the class of a module without a watch, and when it is awake."""
    own: type[nn.Module] = vars(cls).get(OF, cls)
    return AWAKE.get(own, own)
