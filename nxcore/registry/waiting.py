"""Waiting: a line in the log says which plugin's code is waited for, where it takes long."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Protocol

AFTER_S = 2.0
"""Seconds of waiting after which a line says so, and without a wait after which no thread looks any more."""

POLL_S = 0.25

_log = logging.getLogger(__name__)


class Source(Protocol):
    """The origin of a plugin, as the registry has it."""

    @property
    def plugin(self) -> str:
        """The name of the entry point."""


class _Waits:
    """The code that each thread waits for, and the thread that looks at it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin without waits and without a thread, as in a forked child."""
        self.begun: dict[int, tuple[float, Source, str]] = {}
        self._said: set[tuple[str, str]] = set()
        self._lock, self._thread = threading.Lock(), False

    def look(self) -> None:
        """Have a thread look, unless one does."""
        if self._thread:
            return
        with self._lock:
            if not self._thread:
                self._thread = True
                try:
                    threading.Thread(target=self._work, name="nxcore waits", daemon=True).start()
                except RuntimeError:  # no more threads, or the interpreter ends
                    self._thread = False

    def _work(self) -> None:
        last = time.monotonic()
        looks = threading.Event()
        while True:
            looks.wait(POLL_S)  # not a sleep: the end of the process waits for code of ours that sleeps
            now = time.monotonic()
            for since, source, what in list(self.begun.values()):
                last = now
                if now - since > AFTER_S and (source.plugin, what) not in self._said:
                    self._said.add((source.plugin, what))
                    text = "waiting for %s of plugin %s since %.0f s; NXCORE_DISABLE=%s leaves it out"
                    _log.warning(text, what, source, now - since, source.plugin)
            with self._lock:
                if now - last > AFTER_S and not self.begun:
                    self._thread = False
                    return


_waits = _Waits()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waits.reset)


@contextlib.contextmanager
def waiting(source: Source, what: str) -> Iterator[None]:
    """Note within this block that the thread waits for code of a plugin.

    Parameters
    ----------
    source : Source
        The plugin, with its distribution.
    what : str
        The hook, as ``"its probe"``.
    """
    waits, thread = _waits, threading.get_ident()
    outer = waits.begun.get(thread)
    waits.begun[thread] = time.monotonic(), source, what
    waits.look()
    try:
        yield
    finally:
        if outer is None:
            waits.begun.pop(thread, None)
        else:
            waits.begun[thread] = outer
