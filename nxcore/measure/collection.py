"""Pauses of what Python calls by itself: its collection of garbage, and this package's profile functions."""

from __future__ import annotations

import contextlib
import gc
import sys
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


@contextlib.contextmanager
def unprofiled() -> Iterator[None]:
    """Let no recording of the program's code see the block, which runs none, or a copy of what was recorded.

    A profile function is called at each call of Python, which then takes twice as long.

    Examples
    --------
    >>> from nxcore.measure.collection import unprofiled
    >>> from nxcore.nas.recording import Recording
    >>> with Recording(), unprofiled():
    ...     print(sys.getprofile())
    None
    """
    own = sys.getprofile()
    if own is None or not str(getattr(own, "__module__", "")).startswith("nxcore."):
        yield
        return
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(own)


NEVER = 1 << 30
"""As many collections of young objects come before one of all."""

PYTHONS = 1000
"""The objects that Python may have frozen itself: 375 in Python 3.12."""


@contextlib.contextmanager
def young_alone() -> Iterator[None]:
    """Collect the garbage of young objects alone inside of the block; that of the block at its end, if due.

    Work that makes many objects to be kept lets Python look at all there are, again and again: 0.3 s each in
    a program that has imported torch. The last of these comes some seconds later, in the middle of the steps.
    Objects from before the block are looked at again after it, unless the program has frozen some itself.

    Examples
    --------
    >>> import gc
    >>> from nxcore.measure.collection import young_alone
    >>> with young_alone():
    ...     gc.get_threshold()[2] > 1000, gc.isenabled()
    (True, True)
    """
    before = gc.get_threshold()
    if before[2] == NEVER:  # in a block of this thread or another, which puts it back
        yield
        return
    own = gc.get_freeze_count() < PYTHONS
    if own:
        gc.freeze()
    gc.set_threshold(*before[:2], NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if gc.isenabled() and gc.get_count()[2] > before[2]:
            gc.collect()
        if own:
            gc.unfreeze()
