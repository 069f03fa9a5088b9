"""Calls met rarely: torch serves them at the cost of a look-up, and nothing more is found out about them.

A shape that never comes back pays for no description, no choice and no plan. Records apply from the first
call on: see ``Chooser.postpones``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from nxcore.spec.problem import tensors_of

RARE = 3
"""The first calls of a problem that torch serves without a plan."""

COUNTED = 4096
"""The most keys that an operator counts; beyond it all counts begin anew."""

ORDINARY = (False, 0, False, None, -1)
"""The end of the key of a call without autocast, modes and transforms, but for the preference."""

Tables = tuple[Mapping[Any, None], ...]
"""Shapes on record."""


def make_room(counts: dict[Any, int]) -> None:
    """Let all counts begin anew if there are too many."""
    if len(counts) >= COUNTED:
        counts.clear()


class Families:
    """Kinds of calls that may wait: torch serves other sizes of them once their arguments were checked.

    Calls of a family differ in the sizes and strides of tensors alone. The extension has the same of its own.
    """

    def __init__(self) -> None:
        self._known, self._tables = set[Hashable](), Tables()

    def add(self, family: Hashable, tables: Tables) -> None:
        """Add the family of a call that was checked; its sizes wait unless one of ``tables`` has them."""
        if len(self._known) >= COUNTED:
            self._known.clear()
        if family is not None:
            self._known.add(family)
        self._tables = tables

    def serve(self, family: Hashable, counts: dict[Any, int], *args: Any) -> bool:
        """Return whether torch serves a call that is not in ``counts``, which then have room for it."""
        try:
            if family not in self._known:
                return False
        except TypeError:  # a number's place holds something else
            return False
        for table in self._tables:
            if table and tuple([t.shape for t in tensors_of(args)]) in table:
                return False
        make_room(counts)
        return True
