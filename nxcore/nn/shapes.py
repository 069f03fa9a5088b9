"""Shapes: a model's shape that comes back wakes the modules that rest, since a kernel may win there.

Until the first one does, modules rest though nothing is decided, and no steps are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.call.unusual import PLAIN
from nxcore.interop import internals
from nxcore.nn.marks import differentiated, unfit

MET, MOST = 8, 4096
"""Calls with a new shape that wake resting modules, and the most shapes that are counted."""

ROAMED = "no shape of the model's input came back"


def fit() -> bool:
    """Return whether a call made now may exchange modules: not one that is unusual, or in a backward pass."""
    return internals.backward_pass() == -1 and not torch.compiler.is_compiling() and not unfit()


class Shapes:
    """Counts the calls of a model by the shape of the first argument.

    Parameters
    ----------
    wake : callable
        Wakes the resting modules of a model.

    Attributes
    ----------
    roam : bool
        Whether no shape has come back so far.
    """

    def __init__(self, wake: Callable[[nn.Module], None]) -> None:
        self._wake, self.counts, self.roam = wake, dict[Any, int](), True
        self._due = set[Any]()
        self._begun: Callable[[], bool] | None = None

    def passes(self, args: tuple[Any, ...]) -> bool:
        """Count a call while no shape came back, if neither it nor the next one may wake modules."""
        if not self.roam or self._due or not args or args[0].__class__ is not Tensor:
            return False
        shape = args[0].shape
        met = self.counts.get(shape, 0)
        if met >= MET - 2:
            return False
        if not met and len(self.counts) >= MOST:
            self.counts.clear()
        self.counts[shape] = met + 1
        return True

    def new(self, model: nn.Module, args: tuple[Any, ...]) -> bool:
        """Count a call before it runs; return whether ``ran`` must follow, as the next may wake modules."""
        shape = args[0].shape if args and type(args[0]) in PLAIN else None
        met = self.counts.get(shape, 0)
        if met >= MET or torch.compiler.is_compiling() or internals.backward_pass() != -1:
            return False
        if met == MET - 1 and unfit():
            self.roam = False
            return False
        if met == MET - 1:
            self.roam = False
            if self._begun is not None and not self._begun():  # a checkpoint may run the last call again
                return True
            self._wake(model)
            self._due.discard(shape)
        elif met == MET - 2:
            self._due.add(shape)
        elif len(self.counts) >= MOST:
            self.counts.clear()
            self._due.clear()
        self.counts[shape] = met + 1
        return bool(self._due)

    def ran(self, result: Any) -> None:
        """Note the result of such a call."""
        self._begun = differentiated(result) if torch.is_grad_enabled() else None
