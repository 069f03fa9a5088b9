"""The defaults of parameters that are no values: ``REQUIRED``, and ``Drawn`` for what is random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class _Required:
    """The default of a parameter that has none."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED = _Required()


@dataclass(frozen=True)
class Drawn:
    """The default of a random tensor: torch draws it where the caller gives none, before any look-up.

    An operator with such a parameter takes a ``generator`` besides; to kernels the tensor is an argument.

    Attributes
    ----------
    draw : callable
        ``draw(first, generator)`` returns the tensor, by the operator's first argument; None where that is
        nothing to draw for, as the operator's check will tell.
    """

    draw: Callable[[Any, torch.Generator | None], Tensor | None]

    def __repr__(self) -> str:
        return "<drawn>"
