"""Wrappers of plans, for conditions that the key doesn't cover: capture, writes, current device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nxcore.choose.contenders import Choice
from nxcore.context import PREFERENCE, REGIME, Preference, capturing
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.spec.problem import Problem


def guarded(choice: Choice, problem: Problem) -> Callable[..., Any]:
    """Return the planned call behind the wrappers that ``problem`` needs.

    If there is another choice for captured calls, the caller switches between the two.
    """
    call, reference = choice.call, problem.spec.reference
    if call is reference:
        return call
    if choice.decision.rule == "pinned":  # no other backend may replace a requested one
        reference = _refusing(problem.op, choice)
    if problem.device.type == "cuda":
        if not choice.kernel.graph_safe and choice.captured is None:
            call = unless_capturing(call, reference)
        if torch.cuda.device_count() > 1:
            call = _on_device(call, problem.device)
    if problem.writes:
        call = _noticed(call, problem)
    return call


def _refusing(op: str, choice: Choice) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise UnsupportedProblemError(op, choice.decision.chosen, ["a CUDA graph is being captured"])

    return refuse


def in_regime(choice: Choice, problem: Problem) -> Choice:
    """Return the choice for captured calls if it differs and this is one, or ``as_captured``."""
    captured = choice.captured
    return captured if captured and (REGIME.captured or capturing(problem)) else choice


def unless_capturing(call: Callable[..., Any], captured: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that runs ``captured`` in a capture, or ``as_captured``, and ``call`` otherwise."""

    def guarded(*args: Any) -> Any:
        return (captured if REGIME.captured or torch.cuda.is_current_stream_capturing() else call)(*args)

    return guarded


def _on_device(call: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        with torch.cuda.device(device):
            return call(*args)

    return guarded


def _noticed(call: Callable[..., Any], problem: Problem) -> Callable[..., Any]:
    """Mark ``out`` as written for autograd, as torch's own operators do."""
    place = next(i for i, p in enumerate(problem.spec.params) if p.kind == "out")

    def guarded(*args: Any) -> Any:
        if args[place].is_inference() and not torch.is_inference_mode_enabled():
            raise InvalidInputError(
                "out must not be an inference tensor outside torch.inference_mode()", argument="out"
            )
        result = call(*args)
        if not args[place].is_inference():
            torch.autograd.graph.increment_version(args[place])
        return result

    return guarded


def preferring(order: Preference, operator: Callable[..., Any]) -> Callable[..., Any]:
    """Apply ``nxcore.use`` in the backward pass too, which runs later and, on CUDA, in another thread."""
    if order == Preference():
        return operator

    def run(*args: Any) -> Any:
        token = PREFERENCE.set(order)
        try:
            return operator(*args)
        finally:
            PREFERENCE.reset(token)

    return run


def of_the_first(call: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function that passes its first ``count`` arguments to ``call``."""

    def run(*args: Any) -> Any:
        return call(*args[:count])

    return run
