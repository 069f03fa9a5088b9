"""Gradients: those that a backward graph has computed, and copies of them; small ones are copied together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nxcore.graphs.recorder import Recorder
from nxcore.spec.problem import TensorMeta

SMALL = 2**20
"""The most bytes of gradients that are copied together."""


class Gradients:
    """Gradients in the memory of a graph, each of them at a place.

    Parameters
    ----------
    found : dict of int to Tensor
        The gradients by their places. It is made within the capture that computes them.
    """

    def __init__(self, found: Mapping[int, Tensor]) -> None:
        self._found, self._small = found, _small(found)
        self._flat = [torch.cat([_flat(found[i]) for i in own]) for own in self._small]

    def lie(self, recorder: Recorder, count: int) -> None:
        """Keep the addresses alone, of ``count`` places, after the capture."""
        copied = {i for own in self._small for i in own}
        single = {i: recorder.lying(g) for i, g in self._found.items() if i not in copied}
        self._single = [single.get(i) for i in range(count)]
        self._flats = []
        for own, flat in zip(self._small, self._flat, strict=True):
            groups = itertools.groupby(own, key=lambda i: _form(self._found[i]))
            alike = [(list(group), *form, math.prod(form[0])) for form, group in groups]
            self._flats.append((recorder.lying(flat), alike))
        self._found, self._flat = {}, []

    def copies(self) -> list[Tensor | None]:
        """Return copies of the gradients; None where there is none."""
        found = [g if g is None else g.clone() for g in self._single]
        for lying, alike in self._flats:
            begin, flat = 0, lying.clone()
            for places, shape, strides, size in alike:
                owned = flat.as_strided((len(places), *shape), (size, *strides), begin).unbind(0)
                for place, own in zip(places, owned, strict=True):
                    found[place] = own
                begin += len(places) * size
        return found


def _small(gradients: Mapping[int, Tensor]) -> list[list[int]]:
    """Return the indices of gradients that are copied together, by dtype, grouped by shape and layout.

    Their dtype needn't be that of the result: under autocast a result of a half type has parameters, and so
    gradients, in float32.
    """
    small = [i for i, g in gradients.items() if g.nbytes <= SMALL]
    small.sort(key=lambda i: (_kind(gradients[i]), _form(gradients[i]), i))
    kinds = itertools.groupby(small, key=lambda i: _kind(gradients[i]))
    return [list(group) for _, group in kinds]


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype)


def _form(gradient: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and the strides of a copy: of a dense gradient its own.

    Autograd copies a gradient once more whose layout isn't that of its parameter.
    """
    shape = tuple(gradient.shape)
    return shape, TensorMeta.of(torch.empty_like(gradient, device="meta")).strides


def _flat(gradient: Tensor) -> Tensor:
    """Return the elements in the order of the copy's memory."""
    strides = _form(gradient)[1]
    order = sorted(range(gradient.ndim), key=lambda dim: strides[dim], reverse=True)
    return gradient.permute(order).reshape(-1)
