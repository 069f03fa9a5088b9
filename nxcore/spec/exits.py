"""Exits: exceptions that end a program, such as ``SystemExit``, where a kernel raises them.

They are the kernel's fault, unless they came from outside of its code: a signal's handler raised them, such
as Ctrl-C's, or the end of the program.
"""

from __future__ import annotations

import dis
import threading
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType, TracebackType
from typing import NoReturn

from nxcore.errors import VerificationError

ENDING = "the program ends"

RAISED = (BaseException,)
"""All that a kernel may raise; ``blamed`` takes it."""


class ExitError(VerificationError):
    """A kernel raised what ends a program; the cause is that exception."""


def leave() -> NoReturn:
    """End this thread, since the program ends; ``threading`` is silent about it.

    Raises
    ------
    SystemExit
        Always.
    """
    raise SystemExit(ENDING)


def blamed(error: BaseException) -> Exception:
    """Return an exception of a kernel, as an ``ExitError`` if it would end the program.

    Raises
    ------
    BaseException
        The same one, if it came from outside of the kernel's code.

    >>> blamed(SystemExit(3))
    ExitError('raised SystemExit: 3, which ends a program')
    """
    if isinstance(error, Exception):
        return error
    if any(map(_from_outside, chain(error))):
        raise error
    text = str(error).strip().partition("\n")[0]
    said = f"raised {type(error).__name__}{f': {text}' if text else ''}, which ends a program"
    made = ExitError(said)
    made.__cause__ = error
    return made


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it arose from."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _from_outside(error: BaseException) -> bool:
    if error.args == (ENDING,):
        return True
    steps = list(_steps(error.__traceback__))
    # Python gives a signal's handler the frame that it interrupts.
    if any(_takes(inner, outer) for (outer, _), (inner, _) in pairwise(steps)):
        return True
    # Python's own handler of SIGINT leaves no frame: then no statement of Python has raised this.
    main = threading.current_thread() is threading.main_thread()
    return type(error) is KeyboardInterrupt and main and bool(steps) and not _raises(*steps[-1])


def _steps(at: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while at is not None:
        yield at.tb_frame, at.tb_lasti
        at = at.tb_next


def _takes(frame: FrameType, given: FrameType) -> bool:
    values = [(v if isinstance(v, tuple) else (v,)) for v in frame.f_locals.values()]
    return any(each is given for value in values for each in value)


def _raises(frame: FrameType, place: int) -> bool:
    return dis.opname[frame.f_code.co_code[place]] in ("RAISE_VARARGS", "RERAISE")
