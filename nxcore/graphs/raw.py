"""Raw: operations without the norm that ends them, which is computed with the sum of all their results."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.errors import CaptureError

RAW: ContextVar[Raw | None] = ContextVar("nxcore_raw", default=None)
"""The operation in progress whose last norm isn't to be computed."""


class Raw:
    """An operation without the norm that ends it.

    Parameters
    ----------
    operation : callable
        ``operation(x)``; its result must be that of the norm.
    norm : torch.nn.Module
        The norm: a module of this package in training, which calls ``leaves``.

    Attributes
    ----------
    left : Tensor, optional
        What the norm was called with, and returned. None if another module served the norm: then a call
        returned the operation's own result.
    """

    def __init__(self, operation: Callable[[Tensor], Any], norm: nn.Module) -> None:
        self.operation, self.norm = operation, norm
        self.left: Tensor | None = None
        self._version = 0

    def __call__(self, x: Tensor) -> Any:
        """Run the operation.

        Raises
        ------
        CaptureError
            If it returns something else than its norm did, or changes that.
        """
        token = RAW.set(self)
        try:
            out = self.operation(x)
        finally:
            RAW.reset(token)
        if self.left is not None and (out is not self.left or out._version != self._version):
            raise CaptureError("an operation that ended with a norm no longer does")
        return out

    def leave(self, x: Tensor) -> None:
        """Note that the norm returns its argument ``x``."""
        if self.left is not None:
            raise CaptureError("the norm that ends an operation is called twice")
        self.left, self._version = x, x._version


def leaves(norm: nn.Module) -> Raw | None:
    """Return what gets the argument of ``norm`` in place of its result; None if it is to compute."""
    raw = None if torch.compiler.is_dynamo_compiling() else RAW.get()
    return raw if raw is not None and raw.norm is norm else None
