"""The end of the process, while daemon threads still call operators.

At its end the interpreter stops a daemon thread that returns from torch in the middle of C++ code: the
process aborts. So before that, the next call of such a thread raises ``SystemExit``, which ``threading``
handles silently. Calls cost nothing for it: their look-up tables are replaced.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from nxcore.spec.exits import leave

OPERATOR = "<nxcore operator "
"""The prefix of the file names of generated code."""

PATIENCE_S = 10.0
"""Seconds that the end of the process waits for a running call."""

GRACE_S = 0.1
"""Seconds that it waits for the next call of a running thread, since one was last seen in a call."""

POLL_S = 0.001

WAITING = frozenset({"_wait", "_wait_for_tstate_lock", "acquire", "join", "wait", "wait_for"})
"""Functions of ``threading`` in which a thread waits for another one.

In any other a thread runs: ``current_thread`` is called within a call, and while ``_bootstrap_inner`` ends a
thread, it frees what its calls held. To free a tensor, torch gives up the interpreter's lock in C++ code, and
takes it again.
"""

_FOLDER = str(Path(__file__).parents[1])
_over = False


def halt() -> None:
    """End the calling thread if the process is ending and this is a daemon thread.

    Raises
    ------
    SystemExit
        To end the thread.
    """
    if _over and threading.current_thread() in _daemons():
        leave()


def table() -> dict[Any, Any]:
    """Return an empty look-up table for calls."""
    return _Ended() if _over else {}


class _Ended(dict[Any, Any]):
    """A table that ends daemon threads; the main thread may still call, for example in ``atexit``."""

    def __getitem__(self, key: Any) -> Any:
        halt()
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        halt()
        return super().get(key, default)


def end(replace: Iterable[Callable[[], None]]) -> None:
    """End daemon threads at their next call, and wait for those that are in a call.

    Parameters
    ----------
    replace : iterable of callable
        Functions that replace look-up tables by new ones of ``table()``.
    """
    global _over  # noqa: PLW0603  the process ends once
    _over = True
    for each in replace:
        each()
    began = busy = time.monotonic()
    while (now := time.monotonic()) - began < PATIENCE_S:
        running = list(_running())
        if any(map(_in_call, running)):
            busy = now
        elif not running or now - busy > GRACE_S:
            return
        time.sleep(POLL_S)


def _daemons() -> list[threading.Thread]:
    """Return the daemon threads that Python started: without those of torch's autograd."""
    dummy = threading._DummyThread  # noqa: SLF001  no public test
    return [t for t in threading.enumerate() if t.daemon and not isinstance(t, dummy)]


def _running() -> Iterator[FrameType]:
    """Yield the innermost frames of daemon threads that don't wait for another thread outside of a call."""
    frames = sys._current_frames()  # noqa: SLF001  the public way to look at other threads
    for thread in _daemons():
        frame = frames.get(thread.ident or 0)
        if frame is None:
            continue
        code = frame.f_code
        waits = code.co_filename == threading.__file__ and code.co_name in WAITING
        if not waits or _in_call(frame, (OPERATOR,)):  # calls wait for threads of toolkits
            yield frame


def _in_call(frame: FrameType | None, prefixes: tuple[str, ...] = (OPERATOR, _FOLDER)) -> bool:
    """Return whether a thread executes code of files whose names begin so, by default of this package."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(prefixes):
            return True
        frame = frame.f_back
    return False
