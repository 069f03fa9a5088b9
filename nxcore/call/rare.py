"""Calls met rarely: torch serves them at the cost of a look-up, and nothing more is found out about them.

A shape that never comes back pays for no description, no choice and no plan. Records apply from the first
call on: see ``Chooser.postpones``.
"""

from __future__ import annotations

RARE = 3
"""The first calls of a problem that torch serves without a plan."""

COUNTED = 4096
"""The most keys that an operator counts; beyond it all counts begin anew."""

ORDINARY = (False, 0, False, None, None, -1)
"""The end of the key of a call without autocast, modes, transforms and traces, but for the preference."""
