"""Watch: whether what a module's own code reads besides its arguments is as it was."""

from __future__ import annotations

import copy
import enum
import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from nxcore.graphs.structure import CONSTANTS
from nxcore.nn.exchange import PATCHED

PART = "_nxcore_part"
"""The attribute that holds the ``Part`` of a module."""

AUDIT = "_nxcore_audit"
"""The attribute of a module that was taken: its ``Audit``."""

LEFT: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
"""Module -> why it is what it was again."""

MISSING: Any = enum.Enum("MISSING", "MISSING").MISSING  # type: ignore[attr-defined]  # it is pickled by name


class Watch:
    """The values of names that code reads.

    Parameters
    ----------
    held : sequence of tuple
        Owner, name and value. An owner is a module, whose attributes are read, or has ``get(name, default)``.

    Attributes
    ----------
    changed : str
        The name that had another value; empty before ``holds`` found one.
    """

    def __init__(self, held: Sequence[tuple[Any, str, Any]]) -> None:
        self.held = list({(id(owner), name): (owner, name, value) for owner, name, value in held}.values())
        self.changed = ""
        self._were = [(v, copy.copy(v)) for _, _, v in self.held if type(v) in (dict, list, set)]
        self._gets: list[tuple[Any, str, Any]] | None = None

    def __deepcopy__(self, memo: Any) -> Watch:
        owners = [(copy.deepcopy(o, memo) if isinstance(o, nn.Module) else o, n, v) for o, n, v in self.held]
        return Watch([(o, n, _in_copy(v, memo)) for o, n, v in owners])

    def __reduce__(self) -> Any:
        return _lost, ()

    def holds(self) -> bool:
        """Return whether all values are as they were."""
        gets = self._gets
        if gets is None:
            gets = self._gets = [(_get_of(owner), name, value) for owner, name, value in self.held]
        for get, name, value in gets:
            found = get(name, MISSING)
            if found is not value and not _equal(found, value):
                self.changed = name
                return False
        for held, was in self._were:
            if held != was:
                self.changed = next(n for _, n, v in self.held if v is held)
                return False
        return not self.changed


def _lost() -> Watch:
    """Return what a watch is in another process: it knows nothing of the names there."""
    watch = Watch([])
    watch.changed = "names of another process"
    return watch


def _in_copy(value: Any, memo: Any) -> Any:
    return copy.deepcopy(value, memo) if type(value) in (dict, list, set) else value


def _get_of(owner: Any) -> Any:
    return vars(owner).get if isinstance(owner, nn.Module) else owner.get


def _equal(found: Any, value: Any) -> bool:
    kind = type(found)
    return kind is type(value) and (kind in CONSTANTS or kind in (float, tuple)) and bool(found == value)


def before(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of the module's own ``forward``."""
    return getattr(type(module), PATCHED, type(module)).forward(module, *args, **kwargs)
