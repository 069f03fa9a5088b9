"""Shortage: an error of the machine or of the calling program, such as a full disk; no kernel is at fault."""

from __future__ import annotations

import errno
import re

import torch

from nxcore.spec.exits import ExitError, chain

ERRNOS = frozenset(
    getattr(errno, name, 0)
    for name in (
        *("EACCES", "EAGAIN", "EBUSY", "EDQUOT", "EINTR", "EIO", "EMFILE", "ENFILE", "ENOLCK", "ENOMEM"),
        *("ENOSPC", "EPERM", "EROFS", "ESTALE", "ETXTBSY"),
    )
)
"""Errors by which the operating system refuses something for the moment, or to this user."""

WORDS = re.compile(
    r"out[ _]of[ _]memory|can(?:'|no)t allocate memory|memory allocation failed|std::bad_alloc"
    r"|no space left on device|disk quota exceeded|read-only file system|too many open files"
    r"|resource temporarily unavailable|can't start new thread|partially initialized module",
    re.IGNORECASE,
)
"""The same in messages of compilers, drivers and allocators, and of an import that was interrupted."""


def shortage(error: BaseException) -> bool:
    """Return whether an error, or one that it arose from, is a shortage: later the same may succeed.

    >>> shortage(OSError(errno.ENOSPC, "No space left on device"))
    True
    >>> shortage(ValueError("shapes differ"))
    False
    """
    for at in () if isinstance(error, ExitError) else chain(error):
        if isinstance(at, MemoryError | RecursionError | KeyboardInterrupt | torch.OutOfMemoryError):
            return True
        if isinstance(at, OSError) and at.errno in ERRNOS:
            return True
        if WORDS.search(str(at)):
            return True
    return False
