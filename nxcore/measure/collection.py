"""A pause of Python's collection of garbage, which would disturb a timing and end a capture."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage inside of the block.

    Examples
    --------
    >>> import gc
    >>> from nxcore.measure.collection import no_collection
    >>> with no_collection():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
