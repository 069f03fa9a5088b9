"""Room for a new plan: the least recently used ones are dropped one at a time, so that memory stays level.

Plans are in two tables: *younger* ones, made or found since the last look, and *older* ones in the order of
their last look. At a look all plans become older, and no longer near; those in use are found again, and are
younger then.
"""

from __future__ import annotations

from typing import Any

LOOKS = 8
"""How many looks there are while as many new plans are made as half of all that are kept."""


def make_room(younger: dict[Any, Any], older: dict[Any, Any], new: int, half: int) -> bool:
    """Drop old plans until there is room for another one.

    Parameters
    ----------
    younger, older : dict
        An operator's plans.
    new : int
        How many were made since the last look, that one among them.
    half : int
        Half of the most plans that are kept.

    Returns
    -------
    bool
        Whether this is a look: all plans are among the older ones now, and the younger ones need a new table.

    Examples
    --------
    >>> older = {"a": 1, "b": 2}
    >>> make_room({"c": 3}, older, 1, 1), older
    (True, {'c': 3})
    """
    looks = new >= max(1, half // LOOKS)
    if looks:
        older.update(younger)
    try:
        while older and len(older) + (0 if looks else len(younger)) >= 2 * half:
            older.pop(next(iter(older)), None)
    except (RuntimeError, StopIteration):
        pass  # another thread changed it: the next new plan makes room
    return looks
