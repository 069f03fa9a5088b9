"""The casts of ``torch.autocast``, by the rule of each operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.interop import internals
from nxcore.spec.problem import tensors_of
from nxcore.spec.spec import OpSpec

disabled = internals.autocast_disabled


def devices() -> tuple[bool, bool]:
    """Return whether autocast is on for the CPU, and for CUDA."""
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


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
