"""Functions that are made of text: of an operator's parameters, and of an expression."""

from __future__ import annotations

import linecache
from typing import Any


def execute(text: str, filename: str, scope: dict[str, Any]) -> None:
    """Define in ``scope`` the functions of a text; tracebacks and ``inspect`` show its lines.

    The text is made of names and constants that were checked, never of what a user wrote.

    >>> scope = {}
    >>> execute("def answer(): return 42", "<nxcore answer>", scope)
    >>> scope["answer"]()
    42
    """
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), scope)  # noqa: S102  see above
