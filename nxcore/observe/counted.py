"""Plans that count their calls; a test whether a plan is the reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from nxcore.interop.autocast import OUTSIDE


def leads_to(plan: Callable[..., Any], reference: Callable[..., Any]) -> bool:
    """Return whether ``plan`` is the reference, maybe behind a switch or a counter."""
    if plan is reference:
        return True
    kind = plan.__class__
    if kind is FunctionType:
        inner: Any = getattr(plan, OUTSIDE, None)  # what runs with autocast off
        if inner is None or inner.__class__ is FunctionType:
            return inner is reference
        plan, kind = inner, inner.__class__
    if kind is partial:
        return plan.func is reference  # type: ignore[attr-defined]  # a partial has one
    return kind is Counted and plan.torchs(reference)  # type: ignore[attr-defined]  # a Counted has one


class Counted:
    """A plan that counts its calls, including those that a caller of ``by_kernel`` runs with torch.

    Parameters
    ----------
    call : callable
        The plan.
    """

    __slots__ = ("_calls", "_looks", "call")

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self._calls, self._looks = call, itertools.count(), 0

    def __call__(self, *args: Any) -> Any:
        """Run the plan; a call that raises isn't counted."""
        result = self.call(*args)
        next(self._calls)  # atomic: a backward pass runs in another thread
        return result

    def torchs(self, reference: Callable[..., Any]) -> bool:
        """Return whether the plan is the reference. If so, the caller runs it, and it counts as a call."""
        if not leads_to(self.call, reference):
            return False
        next(self._calls)
        return True

    @property
    def count(self) -> int:
        """The number of calls."""
        self._looks += 1
        return next(self._calls) - self._looks + 1
