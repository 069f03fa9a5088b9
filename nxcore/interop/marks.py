"""Marks: stand-ins for what a backward pass has, by which the order of an operator's arguments is found."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Mark:
    """A stand-in for a tensor or number, which can be passed on and not be read."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "number", number)

    def __getattribute__(self, name: str) -> Any:
        raise TypeError(f"a mark has no {name}")

    def _unreadable(self, *_: Any) -> Any:
        raise TypeError("a mark stands for what isn't known")

    __eq__ = __bool__ = __iter__ = __len__ = __float__ = __index__ = __getitem__ = _unreadable
    __hash__ = None  # type: ignore[assignment]  # it is no key


def number(value: Any, known: int, constants: list[Any]) -> Any:
    """Return the number of an argument as in ``Differentiable.order``; one that is no mark is a constant."""
    if type(value) is Mark:
        return object.__getattribute__(value, "number")
    if type(value) is tuple and any(type(item) is Mark for item in value):
        return tuple([number(item, known, constants) for item in value])
    constants.append(value)
    return known + len(constants) - 1


def equal(a: Any, b: Any) -> bool:
    """Return whether two arguments are the same tensors, or equal in value and class."""
    if isinstance(a, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a is b or (not isinstance(a, Tensor) and type(a) is type(b) and bool(a == b))
