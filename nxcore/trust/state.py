"""State: settings of the process or thread, which a kernel must not change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nxcore.interop import internals

TRIALS = 16
"""Runs that must all change the state, while as many runs of the reference don't, to convict a kernel."""


class Fact(NamedTuple):
    """One setting of torch.

    Attributes
    ----------
    read, write : callable
        Functions that return it, and set it.
    own : bool
        Whether each thread has its own value, so that no other thread can have changed it.
    """

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    own: bool


FACTS: Mapping[str, Fact] = MappingProxyType(
    {
        "torch.is_grad_enabled()": Fact(torch.is_grad_enabled, internals.set_grad_enabled, True),
        "torch.get_num_threads()": Fact(torch.get_num_threads, torch.set_num_threads, True),
        "torch.get_default_dtype()": Fact(torch.get_default_dtype, torch.set_default_dtype, False),
        "torch.are_deterministic_algorithms_enabled()": Fact(
            torch.are_deterministic_algorithms_enabled,
            lambda on: torch.use_deterministic_algorithms(
                on, warn_only=torch.is_deterministic_algorithms_warn_only_enabled()
            ),
            False,
        ),
    }
)

CUDA_FACTS: Mapping[str, Fact] = MappingProxyType(
    {
        "torch.cuda.current_device()": Fact(torch.cuda.current_device, torch.cuda.set_device, True),
        "torch.cuda.current_stream()": Fact(torch.cuda.current_stream, torch.cuda.set_stream, True),
    }
)

GENERATOR = "the state of torch's random number generator"


@dataclass(frozen=True, slots=True)
class State:
    """The settings of torch at one moment, and its generators' states.

    Attributes
    ----------
    facts : Mapping
        The value of each setting; on CUDA also the current device and stream.
    generators : Mapping
        The state of each generator. Empty outside the main thread: all threads share the generators, so a
        background thread can't determine which thread drew numbers.
    """

    facts: Mapping[str, Any]
    generators: Mapping[torch.Generator, Tensor]

    @classmethod
    def now(cls, device: torch.device) -> State:
        """Read the state; on CUDA only outside of captures."""
        facts = {name: fact.read() for name, fact in _facts(device).items()}
        if threading.current_thread() is not threading.main_thread():
            return cls(facts, {})
        own = [torch.default_generator]
        if device.type == "cuda":
            own.append(torch.cuda.default_generators[device.index or 0])
        return cls(facts, {g: g.get_state() for g in own})

    def changed(self, since: State) -> str:
        """Return the first difference from an earlier state, with both values; empty if there is none."""
        for name, was in since.facts.items():
            if (now := self.facts[name]) != was:
                return f"{name} was {was}, is {now}"
        drawn = any(not torch.equal(self.generators[g], s) for g, s in since.generators.items())
        return f"{GENERATOR} has changed" if drawn else ""

    def restore(self, device: torch.device, *, own: bool = False) -> None:
        """Restore every setting; with ``own``, only those that no other thread can have set."""
        for name, fact in _facts(device).items():
            if (fact.own or not own) and fact.read() != self.facts[name]:
                fact.write(self.facts[name])

    def rewind(self) -> None:
        """Restore the generators."""
        for generator, state in self.generators.items():
            generator.set_state(state)


def disturbance(
    before: State, device: torch.device, run: Callable[[], Any], control: Callable[[], Any]
) -> str:
    """Return what a kernel that has just run changed since ``before``; empty if nothing, or if it is unsure.

    Another thread may have made the change. So the kernel's ``run`` is repeated, in turns with a ``control``
    that changes nothing. The kernel is convicted only if its runs always change the state and the controls
    never do. The state is restored afterwards.
    """
    after = State.now(device)
    reason = after.changed(before)
    if not reason:
        return ""
    for _ in range(TRIALS):
        before.restore(device)
        if _changes(control, device):
            break
        drawn = State.now(device)
        for generator in before.generators:  # so that setting the same seed again is detected
            torch.empty(1, device=generator.device).uniform_(generator=generator)
        if not _changes(run, device):
            drawn.rewind()
            break
    else:
        before.restore(device)
        before.rewind()
        return reason
    after.restore(device)
    before.restore(device, own=True)
    return ""


def _changes(run: Callable[[], Any], device: torch.device) -> bool:
    mark = State.now(device)
    run()
    return bool(State.now(device).changed(mark))


def _facts(device: torch.device) -> Mapping[str, Fact]:
    return FACTS if device.type != "cuda" else {**FACTS, **CUDA_FACTS}
