"""Shapes: a model's shape that comes back wakes the modules that rest, since a kernel may win there.

Until the first one does, modules rest though nothing is decided, and no steps are compared.
"""

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

ROAMED = "no shape of the model's input came back"


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

    def new(self, model: nn.Module, args: tuple[Any, ...]) -> bool:
        """Count a call before it runs; return whether ``ran`` must follow, as the next may wake modules."""
        shape = args[0].shape if args and type(args[0]) in PLAIN else None
        met = self.counts.get(shape, 0)
        if met >= MET or torch.compiler.is_compiling() or internals.backward_pass() != -1:
            return False
        if met in (0, MET - 1) and unfit():  # which takes longer than all else
            self.roam = False  # no shape may ever be counted, and nothing would wake the modules
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
