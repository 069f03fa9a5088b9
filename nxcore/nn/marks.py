"""Marks in time, and the other facts that a watch over steps reads: alike steps, reasons against a trial."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.call.unusual import PLAIN, unusual
from nxcore.context import NOTHING, PREFERENCE
from nxcore.graphs.hooks import saving
from nxcore.interop import internals
from nxcore.nn.whole import parts_of
from nxcore.program.replay import ranks
from nxcore.session import Session

DEPTH = 3
"""The most levels of containers in which tensors are found."""

SHOWN, SHAPES = 8, 4096
"""Calls with a new shape that wake resting modules, and the most shapes that are counted."""

SPARE = 0.5
"""The free memory that a block needs, as a share of the most that was allocated so far."""


class Wall:
    """The clock of the CPU, where the work is done when a call returns.

    Parameters
    ----------
    now : callable
        Returns seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.mark = now
        """Returns a mark behind all work so far."""

    def passed(self, mark: float) -> bool:
        """Return whether the work before ``mark`` is done: no mark is in the future."""
        return mark <= self.mark()

    def seconds(self, first: float, second: float) -> float:
        """Return the difference."""
        return second - first

    def wall(self, mark: float) -> float:
        """Return ``mark``."""
        return mark

    def room(self, pool: int = 0) -> bool:  # noqa: ARG002  as of a GPU
        """Return True: the CPU's memory isn't counted."""
        return True


class Events:
    """CUDA events of one device. They are read once they have passed, so that nothing waits for the device.

    Parameters
    ----------
    device : torch.device
        A CUDA device.
    now : callable
        Returns the host's seconds.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self.device, self._now = device, now

    def mark(self) -> tuple[torch.cuda.Event, float]:
        """Record an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event, self._now()

    def passed(self, mark: Any) -> bool:
        """Return whether the event has passed."""
        return bool(mark[0].query())

    def seconds(self, first: Any, second: Any) -> float:
        """Return the device's seconds between two events."""
        return float(first[0].elapsed_time(second[0]) * 1e-3)

    def wall(self, mark: Any) -> float:
        """Return when the event was recorded."""
        return float(mark[1])

    def room(self, pool: int = 0) -> bool:
        """Return whether half of the memory that was ever allocated could be allocated in addition."""
        free, _ = torch.cuda.mem_get_info(self.device)
        peak = torch.cuda.max_memory_allocated(self.device)
        return free + torch.cuda.memory_reserved(self.device) - pool - peak >= SPARE * peak


Clock = Wall | Events


def clock_for(model: nn.Module, given: Any, now: Callable[[], float]) -> Clock:
    """Return the clock of the device that ``model`` runs on: that of its first tensor on a GPU."""
    found = (t.device for ts in (tensors(given), model.parameters()) for t in ts)
    gpu = next((device for device in found if device.type == "cuda"), None)
    return Wall(now) if gpu is None else Events(gpu, now)


def tensors(value: Any, depth: int = DEPTH) -> Iterator[Tensor]:
    """Yield the tensors in lists, tuples, dictionaries and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part, depth - 1)
    elif depth and isinstance(value, dict):
        yield from tensors(list(value.values()), depth)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors(list(vars(value).values()), depth) if hasattr(value, "__dict__") else ()


def alike(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Return what is equal for alike calls: sizes, dtypes and plain values, and whether gradients are on."""
    return torch.is_grad_enabled(), _sketch(args, DEPTH), _sketch(kwargs, DEPTH)


def _sketch(value: Any, depth: int) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.requires_grad
    if isinstance(value, bool | int | float | str | None):
        return value
    if depth and isinstance(value, list | tuple):
        return tuple(_sketch(part, depth - 1) for part in value)
    if depth and isinstance(value, dict):
        return tuple((str(name), _sketch(part, depth - 1)) for name, part in value.items())
    return type(value).__qualname__


def differentiated(result: Any) -> Callable[[], bool] | None:
    """Return a function that says whether a backward pass has begun from ``result``; None if none can."""
    found = list(tensors(result))
    if not found:
        return lambda: False  # of a type whose tensors are not known
    roots = [t for t in found if t.requires_grad]
    begun: set[bool] = set()

    def note(_: Tensor) -> None:
        begun.add(True)

    for root in roots:
        root.register_hook(note)
    return (lambda: bool(begun)) if roots else None


def unfit() -> bool:
    """Return whether a call made now isn't to be compared, nor exchanged for another one."""
    return bool(
        unusual() or saving() or torch.is_anomaly_enabled() or torch.are_deterministic_algorithms_enabled()
    )


class Shapes:
    """Counts a model's calls by the shape of the first argument: one that comes back wakes what rests.

    Parameters
    ----------
    wake : callable
        Wakes the resting modules of a model.
    """

    def __init__(self, wake: Callable[[nn.Module], None]) -> None:
        self._wake, self.counts = wake, dict[Any, int]()
        self._begun: Callable[[], bool] | None = None

    def new(self, model: nn.Module, args: tuple[Any, ...]) -> bool:
        """Count a call before it runs; return whether ``ran`` must follow, as the next may wake modules."""
        shape = args[0].shape if args and type(args[0]) in PLAIN else None
        met = self.counts.get(shape, 0)
        if met >= SHOWN or internals.backward_pass() != -1 or torch.compiler.is_compiling() or unfit():
            return False
        if met == SHOWN - 1:
            if self._begun is not None and not self._begun():  # a checkpoint may run the last call again
                return True
            self._wake(model)
            self._begun = None
        elif len(self.counts) >= SHAPES:
            self.counts.clear()
        self.counts[shape] = met + 1
        return met == SHOWN - 2

    def ran(self, result: Any) -> None:
        """Note the result of such a call."""
        self._begun = differentiated(result) if torch.is_grad_enabled() else None


def refusal(model: nn.Module, session: Session) -> str:
    """Return why the steps of ``model`` are not to be compared; empty if they are."""
    if ranks() > 1:
        return "ranks would choose apart"
    if (policy := PREFERENCE.get().policy or session.settings.policy) not in ("auto", "measure"):
        return f"the policy is {policy!r}"
    if session.chooser.lock.chosen:
        return "a lock fixes the choices"
    if any(getattr(m, "_compiled_call_impl", None) or hasattr(m, "_orig_mod") for m in model.modules()):
        return "a part of it is compiled"
    return ""


def mode_of(model: nn.Module) -> tuple[bool, bool]:
    """Return whether it is training, and whether autocast is on."""
    return model.training, internals.any_autocast()


def requested() -> bool:
    """Return whether the call is to run nxcore's operators: something was requested, or it is captured."""
    order = PREFERENCE.get()
    if order is not NOTHING and order._replace(policy="") != NOTHING:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def capture_is_due(model: nn.Module) -> bool:
    """Return whether one of its parts may soon be captured."""
    return any(part.pending for part in parts_of(model))


def saved_s(model: nn.Module) -> float:
    """Return the seconds that replays of its parts save a step, as measured at their captures."""
    return sum(part.saved_ms for part in parts_of(model)) / 1e3
