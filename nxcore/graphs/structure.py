"""Structure: all that a module's calls depend on, except for the values of its tensors."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.call.unusual import PLAIN
from nxcore.graphs.hooks import hooked
from nxcore.graphs.snapshot import OWN

CONSTANTS = (bool, int, str, bytes, types.NoneType, torch.dtype, torch.device, torch.memory_format)
"""Types whose values are equal only if no code distinguishes them."""

CODE = (type, types.FunctionType, types.BuiltinFunctionType)
"""Types whose values are compared by identity."""


class _IncomparableError(Exception):
    """Something that two modules can't be compared by."""


def structure(module: nn.Module) -> Any:
    """Return a key that is equal for modules whose calls differ by the values of tensors alone.

    Returns
    -------
    Any
        None for a module with hooks, or with an attribute that is neither a constant nor a function.

    Examples
    --------
    >>> one, same, other = torch.nn.Conv2d(2, 2, 3), torch.nn.Conv2d(2, 2, 3), torch.nn.Conv2d(2, 2, 1)
    >>> structure(one) == structure(same), structure(one) == structure(other)
    (True, False)
    """
    try:
        return _of_module(module, {})
    except _IncomparableError:
        return None


def _of_module(module: nn.Module, seen: dict[int, int]) -> Any:
    if id(module) in seen:
        return seen[id(module)]
    if hooked(module):
        raise _IncomparableError
    seen[id(module)] = len(seen)
    held = vars(module)
    return (
        type(module),
        module.training,
        *((name, child and _of_module(child, seen)) for name, child in held["_modules"].items()),
        *((name, _of_tensor(t, seen)) for of in ("_parameters", "_buffers") for name, t in held[of].items()),
        *((name, _of_value(value)) for name, value in held.items() if name not in OWN),
    )


def _of_tensor(tensor: Tensor | None, seen: dict[int, int]) -> Any:
    if tensor is None:
        return None
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor._backward_hooks:
        raise _IncomparableError
    place = seen.setdefault(id(tensor), len(seen))  # two names of one tensor
    return (
        place,
        type(tensor),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
    )


def _of_value(value: Any) -> Any:
    kind = type(value)
    if kind in CONSTANTS or isinstance(value, CODE):
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind in (list, tuple, torch.Size):
        return kind, *map(_of_value, value)
    raise _IncomparableError
