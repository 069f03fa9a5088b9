"""Conditions under which only torch can serve a call: of its context, and of its tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.interop import internals

PLAIN = frozenset({Tensor, torch.nn.Parameter})


def unusual() -> str:
    """Return why only torch can serve a call made now; empty if kernels can. Autocast isn't considered."""
    if internals.tracing_state() is not None:
        return "torch.jit traces the reference"
    if internals.in_forward_mode():
        return "forward-mode differentiation goes through the reference"
    if internals.transformed():
        return "torch.func transforms the reference"
    if internals.dispatch_modes():
        return "a __torch_dispatch__ mode is active"
    if internals.function_modes() and not only_default_device():
        return "a __torch_function__ mode is active"
    return ""


def unusual_tensor(tensor: Tensor) -> str:
    """Return why only torch can handle this tensor; empty if kernels can."""
    if type(tensor) not in PLAIN:
        return f"{type(tensor).__name__} is a subclass of Tensor"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}, not torch.strided"
    if tensor.is_neg() or tensor.is_conj():
        return "a lazy negation or conjugation is pending"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"no kernel runs on {tensor.device.type!r}"
    if not _has_memory(tensor):
        return "it has no memory of its own"
    return ""


def _has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor's elements are stored: those of torch's own zeros and of transforms aren't."""
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Exclude a block from ``torch.jit.trace``, in which sizes are tensors."""
    state = internals.tracing_state()
    internals.set_tracing_state(None)
    try:
        yield
    finally:
        internals.set_tracing_state(state)


def stand_ins(args: Sequence[Any]) -> list[Any]:
    """Return the arguments that stand for tensors and are none, as those of ``torch.fx.symbolic_trace``."""
    flat = [item for value in args for item in (value if isinstance(value, tuple | list) else (value,))]
    return [v for v in flat if hasattr(type(v), "__torch_function__") and not isinstance(v, Tensor)]


def recorded(
    operator: Callable[..., Any], params: Sequence[Any], args: Sequence[Any], found: list[Any]
) -> Any:
    """Return what stands for the result of a call, which becomes one node of the stand-ins' graph."""
    named = list(zip(params, args, strict=True))
    given = tuple(value for p, value in named if not p.keyword)
    by_name = {p.name: value for p, value in named if p.keyword and value is not None}
    return torch.overrides.handle_torch_function(operator, found, *given, **by_name)


def only_default_device() -> bool:
    """Return whether all modes in force are of ``torch.set_default_device``, which concern factories."""
    return all(type(mode).__name__ == "DeviceContext" for mode in internals.function_mode_stack())
