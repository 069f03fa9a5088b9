"""The casts of ``torch.autocast``, by the rule of each operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.interop import internals
from nxcore.spec.problem import tensors_of
from nxcore.spec.spec import OpSpec

disabled = internals.autocast_disabled


DEVICES = ("cpu", "cuda")

_enabled, _dtype = torch.is_autocast_enabled, torch.get_autocast_dtype


def state() -> tuple[torch.dtype | None, ...]:
    """Return the dtype of autocast for the CPU and for CUDA; None where it is off."""
    # Written out, since each call under autocast asks: a comprehension takes half as long again.
    return _dtype("cpu") if _enabled("cpu") else None, _dtype("cuda") if _enabled("cuda") else None


@contextlib.contextmanager
def as_in(state: Sequence[torch.dtype | None]) -> Iterator[None]:
    """Let autocast be as in ``state`` within the block; no cast outlives it."""
    with contextlib.ExitStack() as stack:
        for device, dtype in zip(DEVICES, state, strict=True):
            if dtype is not None or torch.is_autocast_enabled(device):
                on = dtype is not None
                stack.enter_context(torch.autocast(device, dtype, enabled=on, cache_enabled=False))
        yield


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Let torch cast each tensor anew within the block, and use no cast that it made before.

    What a graph replays casts parameters as they are then.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def uncast(spec: OpSpec, args: tuple[Any, ...], plan: Callable[..., Any]) -> Callable[..., Any]:
    """Return the plan under the present autocast of calls like that of ``args``; ``plan`` is for none.

    Torch differentiates the casts. Each is made anew, while torch's own operators keep those of parameters
    until the block ends; there is no way to its cache. The reference needs no help: torch casts what it runs.
    """
    if plan is spec.reference:
        return plan
    device = _device(args)
    given = cast(spec, args) or args
    places = tuple(
        i for i, (before, after) in enumerate(zip(args, given, strict=True)) if before is not after
    )
    for other in DEVICES:
        if other != device and torch.is_autocast_enabled(other):
            plan = _without(plan, other)
    plan = _without(plan, device)
    return _casting(plan, places, device) if places else plan


def outside(plan: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the plan that a plan of ``uncast`` runs; None for any other."""
    return getattr(plan, OUTSIDE, None)


def bare(plan: Callable[..., Any]) -> tuple[Callable[..., Any], int]:
    """Return what does as ``plan`` if called while a set of dispatch keys is excluded, and the set's bits."""
    return getattr(plan, _BARE, (plan, 0))


OUTSIDE, _BARE = "_nxcore_outside", "_nxcore_bare"


def _without(plan: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return ``plan`` with autocast off for ``device``."""
    # Names of the enclosing function are the fastest: a class would cost as much again.
    exclude, key = internals.exclude, internals.AUTOCAST[device]

    def run(*args: Any) -> Any:
        exclude(key, True)
        try:
            return plan(*args)
        finally:
            exclude(key, False)

    inner, excluded = bare(plan)
    setattr(run, _BARE, (inner, excluded | internals.bits_of(key)))
    setattr(run, OUTSIDE, outside(plan) or plan)
    return run


def _casting(plan: Callable[..., Any], places: tuple[int, ...], device: str) -> Callable[..., Any]:
    """Return ``plan`` with the arguments at ``places`` cast to the present dtype of autocast."""
    dtype = torch.get_autocast_dtype(device)

    def run(*args: Any) -> Any:
        given = list(args)
        for place in places:
            value = given[place]
            given[place] = value.to(dtype) if isinstance(value, Tensor) else _cast(value, device, dtype)
        return plan(*given)

    setattr(run, OUTSIDE, outside(plan))
    return run


def concerns(args: tuple[Any, ...]) -> bool:
    """Return whether autocast is on for the device of ``args``."""
    return internals.any_autocast() and torch.is_autocast_enabled(_device(args))


def cast(spec: OpSpec, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return ``args`` after autocast's casts: the same tuple where nothing changes.

    None if only torch's reference can apply them: for a device without a rule, or a rule whose cast torch
    does inside its own kernel.
    """
    device = _device(args)
    rule = spec.autocast.get(device)
    if not torch.is_autocast_enabled(device) or rule == "same":
        return args
    if rule is None:
        return None
    dtype = torch.get_autocast_dtype(device) if rule == "lower" else torch.float32
    if not any(_concerns(t, device, dtype) for t in tensors_of(args)):
        return args
    return tuple(_cast(a, device, dtype) for a in args) if rule == "lower" else None


def _device(args: tuple[Any, ...]) -> str:
    return next((t.device.type for t in tensors_of(args) if t.device.type != "cpu"), "cpu")


def _concerns(value: Any, device: str, dtype: torch.dtype) -> bool:
    """Return whether torch would cast ``value``: it casts no float64, and only tensors on the device."""
    if not isinstance(value, Tensor) or value.device.type != device or not value.is_floating_point():
        return False
    return value.dtype not in (torch.float64, dtype)


def _cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_cast(v, device, dtype) for v in value)
    return value.to(dtype) if _concerns(value, device, dtype) else value
