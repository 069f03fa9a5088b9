"""Ctrl-C in a command: an interruption that other code has swallowed is raised again at the next step.

Python ignores an exception that is raised in a destructor or in the callback of a C library, such as a
compiler's or torch's at its import. The command would go on as if the key had not been pressed.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec

STATUS = 130
"""The exit status of a command that was interrupted, as shells have it."""

P = ParamSpec("P")

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


def is_lost() -> bool:
    """Return whether there was an interruption since the last one that was raised again."""
    return _interrupted.is_set()


def raise_lost() -> None:
    """Raise ``KeyboardInterrupt`` if there was an interruption and the command still goes on."""
    if is_lost():
        _interrupted.clear()
        raise KeyboardInterrupt


def checked(step: Callable[P, None]) -> Callable[P, None]:
    """Return ``step`` as a function that raises a lost interruption before it."""

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        raise_lost()
        step(*args, **kwargs)

    return call


def _note(*_: Any) -> None:
    first = not is_lost()
    _interrupted.set()
    # Torch's import swallows the exception, fails later, or ends the process. A second key press raises it.
    if not (first and _is_being_imported("torch")):
        raise KeyboardInterrupt


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
