"""Calls met rarely: torch serves them at the cost of a look-up, and nothing more is found out about them.

A shape that never comes back pays for no description, no choice and no plan. Records apply from the first
call on: see ``Chooser.postpones``.
"""

from __future__ import annotations

from typing import Any

RARE = 3
"""The first calls of a problem that torch serves without a plan."""

COUNTED = 4096
"""The most keys that an operator counts; beyond it all counts begin anew."""

_ORDINARY = (False, 0, False, None, None, -1)


def ordinary(key: tuple[Any, ...]) -> bool:
    """Return whether a call's context, as its key has it, is without autocast, modes, transforms and traces.

    The determinism before these and the preference behind them aren't considered.
    """
    return key[-7:-1] == _ORDINARY


def note(counts: dict[Any, int], key: Any) -> None:
    """Count the first call of a key."""
    if len(counts) >= COUNTED:
        counts.clear()
    counts[key] = 1
