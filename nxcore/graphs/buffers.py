"""Buffers: tensors that a capture reads and writes in place of the caller's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.spec.layout import overlaps
from nxcore.spec.problem import TensorMeta


def new_like(tensor: Tensor) -> Tensor:
    """Return new memory, with the layout of ``tensor`` if that can be written."""
    meta = TensorMeta.of(tensor)
    return torch.empty_like(tensor, requires_grad=False) if overlaps(meta) else meta.empty()


def buffer(tensor: Tensor) -> Tensor:
    """Return a copy that a graph reads in place of ``tensor``."""
    return new_like(tensor).copy_(tensor.detach()).requires_grad_(tensor.requires_grad)


def fill(buffers: Iterable[Tensor], tensors: Iterable[Tensor]) -> None:
    """Copy the inputs of a graph into its buffers."""
    with torch.no_grad():
        for own, tensor in zip(buffers, tensors, strict=True):
            own.copy_(tensor)


@contextlib.contextmanager
def untouched(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore these tensors after the block: warm-up calls must have no effect."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                tensor.data.copy_(value)  # autograd, which may have saved it, must not see a change


@contextlib.contextmanager
def aliased(modules: Iterable[nn.Module], tensors: Iterable[Tensor]) -> Iterator[list[Any]]:
    """Replace parameters, buffers and other attributes by aliases of the same memory within the block.

    Yields the aliases of ``tensors``.

    A capture must not hold the parameters' own autograd nodes, which are shared and remember the stream on
    which they were made. And its writes must not look like changes to a backward pass that the caller has
    still to run.
    """
    held = list(tensors)
    others = {id(t): nn.Parameter(t.detach(), True) if t.requires_grad else t.data for t in held}
    owned = [own for m in modules for own in (m._parameters, m._buffers, vars(m))]  # no public dict of these
    places: list[Any] = [(own, n, t) for own in owned for n, t in own.items() if id(t) in others]
    try:
        for own, name, t in places:
            own[name] = others[id(t)]
        yield [others[id(t)] for t in held]
    finally:
        for own, name, t in places:
            own[name] = t
