"""The conformance kit: the rules that every kernel must pass. May import session and below.

    pytest --nxcore-backend=NAME --pyargs nxcore.testing

checks every kernel of a backend against every rule; it finds kernels and samples itself. ``examine`` does the
same without pytest and returns a row for each kernel and dtype; ``nxcore verify`` prints these rows.
``verify`` judges a function that belongs to no plugin.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nxcore.testing.cell import Broken, Cell, Declined, Inapplicable
    from nxcore.testing.isolate import isolated
    from nxcore.testing.referee.verdict import verify
    from nxcore.testing.rows import Finding, Row, examine

__all__ = ["Broken", "Cell", "Declined", "Finding", "Inapplicable", "Row", "examine", "isolated", "verify"]

HOMES = {
    "Broken": "cell",
    "Cell": "cell",
    "Declined": "cell",
    "Finding": "rows",
    "Inapplicable": "cell",
    "Row": "rows",
    "examine": "rows",
    "isolated": "isolate",
    "verify": "referee.verdict",
}


def __getattr__(name: str) -> Any:
    """Import at first use, because pytest imports this package in every session for its options."""
    if name not in HOMES:
        raise AttributeError(f"module 'nxcore.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"nxcore.testing.{HOMES[name]}"), name)
