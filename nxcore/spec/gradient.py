"""Gradient: the operator that computes the gradient of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Gradient:
    """The operator that computes the gradient of another.

    Attributes
    ----------
    op : str
        The backward operator's name.
    args : callable
        ``args(grad, mask, *arguments) -> tuple``: the backward operator's arguments, from the
        incoming gradient, which tensors need one (a tuple of bool, sequences flattened), and the
        forward arguments. A tensor that is not in ``saves`` comes as its ``TensorMeta``.
    saves : tuple of str
        The parameters that are saved for the backward pass. One that torch's own autograd doesn't save, as a
        trial shows, is saved as a copy: a program may write to it.
    reads : Mapping of str to tuple of str
        Saved parameter -> those for whose gradients its values are read; for all of them by default. For
        other gradients its shape alone matters, and no copy is made.
    result : bool
        The result is saved for the backward pass, as torch's own autograd saves it, and ``args`` receives it
        after the forward arguments.
    forward : str
        The operator that runs in place of this one where a gradient is needed. It takes the first of the
        same arguments and returns a tuple: the result, and tensors to save for the backward pass, which
        ``args`` receives after the forward arguments. Empty where nothing more is saved.
    keeps : bool
        The operator's own result is a tuple, and only its first tensor has a gradient. The others are saved
        for the backward pass, and ``args`` receives them after the forward arguments.
    covers : callable
        ``covers(*arguments) -> bool``: whether ``op`` computes the gradient of this call; if not, torch does.

    Examples
    --------
    >>> nxcore.ops.sum.spec.gradient.op
    'sum_backward'
    """

    op: str
    args: Callable[..., tuple[Any, ...]]
    saves: tuple[str, ...] = ()
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    result: bool = False
    forward: str = ""
    keeps: bool = False
    covers: Callable[..., bool] = lambda *_: True
