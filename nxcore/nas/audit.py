"""Audit: whether a module that was taken still computes what its own ``forward`` does.

Each call tests the values that the module's own code reads. A few calls, ever fewer but never none, are
repeated by a copy both ways. A module that differs becomes what it was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from nxcore.context import KernelWarning
from nxcore.errors import FOREIGN
from nxcore.measure.collection import unprofiled
from nxcore.nas.comparison import Call, difference, part, twin_of, usual
from nxcore.nas.watch import AUDIT, LEFT, Watch
from nxcore.nn import Swap
from nxcore.nn.exchange import PATCHED, become

FIRST, SELDOM = 8, 1 << 14
"""The first call that is repeated; the most calls between two that are."""


class Count:
    """The calls of all modules of one structure: they share the calls that are repeated.

    Parameters
    ----------
    cls : type
        Their class. Calls of this package's code aren't repeated: its tests do that.

    Attributes
    ----------
    calls : int
    due : int
        The next call that is repeated.
    passes : int
        How often the module was called whose call was repeated last. One that was called no more often isn't
        repeated: a network has dozens of one structure.
    why : str
        How one of them differed; empty before.
    """

    def __init__(self, cls: type) -> None:
        self.calls, self.due, self.why = 0, math.inf if ours(cls) else FIRST, ""
        self.passes = 0

    def put_off(self, passes: int = 0) -> None:
        """Let as many calls pass as there were, and ``SELDOM`` at most."""
        self.passes = passes
        self.due = self.calls + min(self.calls, SELDOM)


def ours(cls: type) -> bool:
    """Return whether a class is one of this package's."""
    return cls.__module__.startswith("nxcore.")


class Audit:
    """Whether a taken module may be called by operators.

    Parameters
    ----------
    name : str
        Its name in the model.
    swap : Swap
        The report of the patch, which is kept up to date.
    watch : Watch
        Over what its own code reads.
    count : Count
    own, ours : callable
        Called with the module and arguments: its own code, and what is called in its place.
    leave : callable
        ``leave(module)`` takes from it what was put there.
    """

    def __init__(
        self,
        name: str,
        swap: Swap,
        watch: Watch,
        count: Count,
        own: Call,
        ours: Call,
        leave: Callable[[nn.Module], None],
    ) -> None:
        self.name, self.swap, self.watch, self.count, self._passes = name, swap, watch, count, 0
        self._calls, self._leave = (own, ours), leave

    def __deepcopy__(self, memo: Any) -> Audit:  # for another module, in another report
        from copy import deepcopy

        return Audit(
            self.name,
            Swap(),
            deepcopy(self.watch, memo),
            deepcopy(self.count, memo),
            *self._calls,
            self._leave,
        )

    def __reduce__(self) -> Any:
        return Audit, (self.name, Swap(), self.watch, Count(object), *self._calls, self._leave)

    def passes(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Return whether the module may be called by operators now; if not, it is what it was from now on."""
        if not self.watch.holds():
            self.give_back(module, f"its code reads {self.watch.changed}, which changed")
            return False
        count = self.count
        if count.why:
            self.give_back(module, f"{count.why}: its own forward runs from now on")
            return False
        count.calls += 1
        self._passes += 1
        if count.calls < count.due or self._passes <= count.passes or not usual():
            return True
        count.put_off(self._passes)
        count.why = self._differs(module, args, kwargs)
        if not count.why:
            return True
        self.give_back(module, f"{count.why}: its own forward runs from now on")
        text = f"nas.patch gave {self.name or 'the model'} back: {count.why}"
        warnings.warn(text, KernelWarning, stacklevel=2)
        return False

    def give_back(self, module: nn.Module, why: str) -> None:
        """Let a module be what it was."""
        if cls := getattr(type(module), PATCHED, None):
            become(module, cls)
        self._leave(module)
        vars(module).pop(AUDIT, None)
        LEFT[module] = self.swap.left[self.name] = why
        self.swap.replaced.pop(self.name, None)

    def _differs(self, module: nn.Module, args: Any, kwargs: Any) -> str:
        """Return how a copy's call differs from that of its own code."""
        try:
            with unprofiled():
                return difference(twin_of(module), *self._calls, tree_map(part, (args, kwargs))) or ""
        except torch.OutOfMemoryError:
            return ""  # a later call is repeated
        except FOREIGN as error:
            return f"a call could not be repeated: {type(error).__name__}: {error}"
