"""Checks that operators share: each names the argument, what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.spec.precision import CLASSES, WORDS


def require_tensor(value: Any, name: str, *, floating: bool = True, strided: bool = True) -> None:
    """Raise unless ``value`` is a plain tensor, with a real floating dtype and strided where required.

    >>> require_tensor(torch.ones(2, dtype=torch.int64), "x")
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: x must have a floating dtype, got torch.int64
    """
    if not isinstance(value, Tensor):
        raise InvalidInputError(f"{name} must be a tensor, got {type(value).__name__}", argument=name)
    if value.is_nested or value.is_quantized:
        raise InvalidInputError(f"{name} must be neither nested nor quantized", argument=name)
    if value.dtype.itemsize == 1 if value.dtype.is_floating_point else floating:  # torch adds no 8-bit floats
        raise InvalidInputError(f"{name} must have a floating dtype, got {value.dtype}", argument=name)
    if strided and value.layout is not torch.strided:
        raise InvalidInputError(f"{name} must be strided, got layout {value.layout}", argument=name)


def require_precision(value: Any, name: str = "precision") -> None:
    """Raise unless ``value`` is None, a precision class, or a word of torch's for one.

    >>> require_precision("fp32x")
    """
    known = (*CLASSES, *WORDS)
    if value is not None and not (isinstance(value, str) and value in known):
        wanted = ", ".join(map(repr, known))
        raise InvalidInputError(f"{name} must be one of {wanted}, got {brief(value)}", argument=name)


def require_shape(value: Any, shape: tuple[int, ...], name: str) -> None:
    """Raise unless a gradient, or what the forward pass saved, has the output's ``shape``.

    >>> require_shape(torch.ones(2), (3,), "grad")
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: grad must have the output's shape (3,), got (2,)
    """
    if tuple(value.shape) != shape:
        raise InvalidInputError(
            f"{name} must have the output's shape {shape}, got {tuple(value.shape)}", argument=name
        )


def require_flags(value: Any, count: int, name: str) -> None:
    """Raise unless ``value`` is a sequence of ``count`` flags.

    >>> require_flags((True,), 2, "output_mask")
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: output_mask must have 2 entries, got 1
    """
    if not isinstance(value, tuple | list):
        raise InvalidInputError(f"{name} must be a sequence of flags, got {brief(value)}", argument=name)
    if len(value) != count:
        raise InvalidInputError(f"{name} must have {count} entries, got {len(value)}", argument=name)
    for flag in value:
        require_flag(flag, name)


def require_flag(value: Any, name: str) -> None:
    """Raise unless ``value`` is True or False, as torch does.

    >>> require_flag(1, "keepdim")
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: keepdim must be True or False, got 1
    """
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} must be True or False, got {brief(value)}", argument=name)


def require_size(value: Any, name: str) -> None:
    """Raise unless ``value`` can be a tensor's shape.

    >>> require_size((2, -3), "size")
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: size must be a tensor's shape, got (2, -3)
    """
    if not isinstance(value, tuple | list) or not all(map(_is_integer, value)):
        raise InvalidInputError(f"{name} must be a sequence of integers, got {brief(value)}", argument=name)
    if any(isinstance(n, torch.SymInt) for n in value):
        return  # a compiler's, to which a comparison is a condition of the program; torch checks the sizes
    if any(n < 0 for n in value) or math.prod(n or 1 for n in value) >= 2**63:
        raise InvalidInputError(f"{name} must be a tensor's shape, got {tuple(value)}", argument=name)


def require_integers(value: Any, name: str) -> None:
    """Raise unless ``value`` is an integer or a pair of integers below 2**31, torch's limit for a window.

    >>> require_integers(1.5, "stride")
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: stride must be an integer or a pair of integers, got 1.5
    """
    if type(value) is int and value < 2**31:  # the common case
        return
    given = value if isinstance(value, tuple | list) else (value,)
    if len(given) not in (1, 2) or not all(map(_is_integer, given)):
        message = f"{name} must be an integer or a pair of integers, got {brief(value)}"
        raise InvalidInputError(message, argument=name)
    if any(v >= 2**31 for v in given):
        raise InvalidInputError(f"{name} must be below 2**31, got {value}", argument=name)


def _is_integer(value: Any) -> bool:
    # A compiler's trace has sizes that are symbols.
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def brief(value: Any) -> str:
    """Return plain values as text, other values as their type: their own text may be long, or raise.

    >>> brief((1, "a", torch.ones(2)))
    "(1, 'a', Tensor)"
    """
    if isinstance(value, tuple | list):
        items = (type(v).__name__ if isinstance(v, tuple | list) else brief(v) for v in value[:8])
        return f"({', '.join(items)}{', ...' if len(value) > 8 else ''})"
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__


def require_same(values: Sequence[Any], name: str, *attributes: str) -> None:
    """Raise unless all tensors share the first one's shape, dtype or device, as ``attributes`` name.

    >>> require_same([torch.ones(2), torch.ones(3)], "xs", "shape")
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: xs must share one shape: xs[0] has (2,), xs[1] has (3,)
    """
    for attribute in attributes:
        wanted = getattr(values[0], attribute)
        for i, value in enumerate(values):
            got = getattr(value, attribute)
            if got != wanted:
                wanted, got = ((tuple(v) if attribute == "shape" else v) for v in (wanted, got))
                raise InvalidInputError(
                    f"{name} must share one {attribute}: {name}[0] has {wanted}, {name}[{i}] has {got}",
                    argument=name,
                )
