"""Shapes: a model's shape that comes back wakes the modules that rest, since a kernel may win there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nxcore.call.unusual import PLAIN
from nxcore.interop import internals
from nxcore.nn.marks import differentiated, unfit

MET, MOST = 8, 4096
"""Calls with a new shape that wake resting modules, and the most shapes that are counted."""


class Shapes:
    """Counts the calls of a model by the shape of the first argument.

    Parameters
    ----------
    wake : callable
        Wakes the resting modules of a model.
    """

    def __init__(self, wake: Callable[[nn.Module], None]) -> None:
        self._wake, self.counts = wake, dict[Any, int]()
        self._begun: Callable[[], bool] | None = None

    def new(self, model: nn.Module, args: tuple[Any, ...]) -> bool:
        """Count a call before it runs; return whether ``ran`` must follow, as the next may wake modules."""
        shape = args[0].shape if args and type(args[0]) in PLAIN else None
        met = self.counts.get(shape, 0)
        if met >= MET or internals.backward_pass() != -1 or torch.compiler.is_compiling() or unfit():
            return False
        if met == MET - 1:
            if self._begun is not None and not self._begun():  # a checkpoint may run the last call again
                return True
            self._wake(model)
            self._begun = None
        elif len(self.counts) >= MOST:
            self.counts.clear()
        self.counts[shape] = met + 1
        return met == MET - 2

    def ran(self, result: Any) -> None:
        """Note the result of such a call."""
        self._begun = differentiated(result) if torch.is_grad_enabled() else None
