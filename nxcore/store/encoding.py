"""Plain data -> JSON that every reader takes, and back: a number that JSON lacks becomes null.

Python's encoder writes ``Infinity`` and ``NaN``, which other readers refuse. It writes nothing elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

DEPTH = 32
"""The deepest nesting of a document."""

DIGITS = 20
"""The most characters of a whole number: no shape, count or date has more."""


def _bounded(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"it holds a number of {len(text)} digits")
    return int(text)


DECODER = json.JSONDecoder(parse_int=_bounded)


def encoded(
    data: Any,
    *,
    indent: int | None = None,
    sort_keys: bool = False,
    separators: tuple[str, str] | None = None,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Return ``data`` as JSON.

    Parameters
    ----------
    data : Any
        Plain data. An infinite number, or one that is none, is written as null.
    indent, sort_keys, separators, default
        As in ``json.dumps``.

    Raises
    ------
    TypeError
        If a value is not plain and there is no ``default``.

    Examples
    --------
    >>> encoded({"limit_s": float("inf"), "error": 0.5})
    '{"limit_s": null, "error": 0.5}'
    """

    def written(value: Any) -> str:
        return json.dumps(
            value,
            indent=indent,
            sort_keys=sort_keys,
            separators=separators,
            default=default,
            allow_nan=False,
        )

    try:
        return written(data)
    except ValueError:  # of a number that JSON lacks; there is none in most data
        return written(_finite(data, default))


def decoded(text: str) -> Any:
    """Return the data of JSON.

    Raises
    ------
    ValueError
        If it isn't JSON, holds a whole number of more than 64 bits, or is nested more than ``DEPTH`` deep.

    Examples
    --------
    >>> decoded('{"error": null}')
    {'error': None}
    """
    try:
        found = DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.count("[") + text.count("{") > DEPTH:
        _require_flat(found)
    return found


def _require_flat(found: Any) -> None:
    level = [found]
    for _ in range(DEPTH):
        inner = (v for value in level for v in (value.values() if isinstance(value, dict) else value))
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEPTH} deep")


def _finite(value: Any, default: Callable[[Any], Any] | None) -> Any:
    """Return the data with null in place of each number that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each, default) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each, default) for each in value]
    if default is None or value is None or isinstance(value, (str, int)):
        return value
    return _finite(default(value), default)
