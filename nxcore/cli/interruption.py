"""Ctrl-C in a command: an interruption that other code has swallowed is raised again at the next step.

Python ignores an exception that is raised in a destructor or in the callback of a C library, such as a
compiler's or torch's at its import. The command would go on as if the key had not been pressed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_interrupted = threading.Event()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note each interruption within the block, unless the program handles or ignores the signal itself."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _interrupted.clear()


def raise_lost() -> None:
    """Raise ``KeyboardInterrupt`` if there was an interruption and the command still goes on."""
    if _interrupted.is_set():
        _interrupted.clear()
        raise KeyboardInterrupt


def _note(*_: Any) -> None:
    _interrupted.set()
    raise KeyboardInterrupt
