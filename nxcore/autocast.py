"""What ``torch.autocast`` does to an operator's arguments, by the operator's own rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.spec import OpSpec

disabled = torch._C._DisableAutocast  # noqa: SLF001  torch.autocast(enabled=False) costs ten times as much


def cast(spec: OpSpec, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return ``args`` as autocast has them: the very same where it changes nothing.

    None where only torch's reference knows: a device without a rule, or a rule whose cast torch does inside
    of its kernel.
    """
    tensors = [t for a in args for t in (a if isinstance(a, tuple | list) else (a,)) if isinstance(t, Tensor)]
    device = next((t.device.type for t in tensors if t.device.type != "cpu"), "cpu")
    if not torch.is_autocast_enabled(device):
        return args
    rule = spec.autocast.get(device)
    if rule is None or rule == "same":
        return args if rule else None
    dtype = torch.get_autocast_dtype(device) if rule == "lower" else torch.float32
    if not any(_concerns(t, device, dtype) for t in tensors):
        return args
    return tuple(_cast(a, device, dtype) for a in args) if rule == "lower" else None


def _concerns(value: Any, device: str, dtype: torch.dtype) -> bool:
    """Tell whether torch would cast ``value``: no float64, nothing on another device."""
    if not isinstance(value, Tensor) or value.device.type != device or not value.is_floating_point():
        return False
    return value.dtype not in (torch.float64, dtype)


def _cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_cast(v, device, dtype) for v in value)
    return value.to(dtype) if _concerns(value, device, dtype) else value
