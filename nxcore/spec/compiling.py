"""Compiling is announced by plugins, and can be forbidden where a call or a budget can't wait for it.

Torch's compiler takes some functions as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from nxcore.spec import tally
from nxcore.spec.planning import PLANNING, planning

Function = TypeVar("Function", bound=Callable[..., Any])


class UncompiledError(Exception):
    """Something must be compiled, in a block that forbids it."""


def compiling(what: str) -> None:
    """Announce that ``what`` is compiled next, since its compiled code is not on disk.

    A plan that takes a compiler's seconds calls it before it compiles; loading from disk needs no call.

    Raises
    ------
    UncompiledError
        If the plan is wanted only if everything is on disk: then the kernel is compiled later, where no
        call waits for it.

    Examples
    --------
    >>> compiling("add in float32")
    """
    if PLANNING.get().on_disk_alone:
        raise UncompiledError(what)
    tally.compiled()


def on_disk_alone() -> contextlib.AbstractContextManager[None]:
    """Forbid compiling within this block, in this thread."""
    return planning(on_disk_alone=True)


def unseen(function: Function) -> Function:
    """Let dynamo call ``function`` while tracing, and use its result as a constant."""
    # torch.compiler.assume_constant_result does the same, but imports the compiler.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001  see above
    return function
