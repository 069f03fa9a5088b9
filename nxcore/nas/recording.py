"""Recording: which functions of the user's own code a call runs, what they read and what they may change."""

import contextlib
import os
import sys
import types
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from nxcore.measure.collection import no_collection
from nxcore.nas.reading import FUNCTIONS, Reads
from nxcore.nn.exchange import PATCHED, awake

OWN = f"{Path(__file__).parents[1]}{os.sep}"
TORCHS, PYTHONS = (f"{Path(str(m.__file__)).parent}{os.sep}" for m in (torch, os))

METHODS: dict[Any, set[str]] = {
    list: {"append", "extend", "index", "pop"},
    dict: {"get", "items", "keys", "values"},
    str: {"format", "join", "startswith", "endswith", "split"},
}
"""Methods of Python's types that code may call: they change nothing but a list, whose items are compared."""


def users(code: types.CodeType) -> bool:
    """Return whether code is neither torch's, nor Python's, nor of this package."""
    return not (code.co_filename.startswith((OWN, TORCHS, "<frozen")) or _pythons(code))


def _pythons(code: types.CodeType) -> bool:
    return code.co_filename.startswith(PYTHONS) and "site-packages" not in code.co_filename


def called(frame: types.FrameType) -> bool:
    """Return whether the user's code calls a function of Python's own library."""
    caller = frame.f_back
    return _pythons(frame.f_code) and caller is not None and users(caller.f_code)


def allowed(function: Any) -> bool:
    """Return whether a function of Python that isn't Python code depends on its arguments alone."""
    try:
        if function in FUNCTIONS:
            return True
    except TypeError:
        return False
    own = getattr(function, "__self__", None)
    return getattr(function, "__name__", "") in METHODS.get(type(own), set())


class Recording:
    """A block that notes the user's functions that run in it.

    Attributes
    ----------
    reads : Reads
        What their code reads, and what of that can't be watched.
    able : bool
        Whether it could record: not beside a profiler.
    blocks : list of Recording
        The outermost block, which sees every call, and those within it.
    """

    def __init__(self) -> None:
        self.reads = Reads(lenient=True)
        self.able = False
        self.blocks = [self]
        self._ends = contextlib.ExitStack()
        # By identity: the hash of code reads all of it. The code is held, so that no other has its number.
        self._whose: dict[int, tuple[types.CodeType, bool, bool]] = {}

    def __enter__(self) -> Self:
        """Begin."""
        profiler = sys.getprofile()
        outer = getattr(profiler, "__self__", None)
        self.able = profiler is None or isinstance(outer, Recording)
        if isinstance(outer, Recording):
            self.blocks = outer.blocks
            self.blocks.append(self)
        elif profiler is None:
            self._ends.enter_context(no_collection())  # a callback of one is the program's code too
            sys.setprofile(self.seen)
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        if self.blocks[0] is not self:
            self.blocks.remove(self)
        elif self.able:
            sys.setprofile(None)
        self._ends.close()

    def seen(self, frame: types.FrameType, event: str, arg: Any) -> None:
        """See a call."""
        code = frame.f_code
        if event == "c_call":
            if self._known(code)[1] and not (allowed(arg) or _of_torch(arg)):
                for recording in self.blocks:
                    if recording.reads.ran(code):
                        recording.reads.effects.append(f"it calls {getattr(arg, '__qualname__', arg)}")
        elif event == "call":
            _, users_own, pythons = self._known(code)
            if users_own or pythons:
                for recording in self.blocks:
                    recording.note(frame, users_own=users_own)

    def _known(self, code: types.CodeType) -> tuple[types.CodeType, bool, bool]:
        """Return code, whether it is the user's, and whether it is Python's."""
        found = self._whose.get(id(code))
        if found is None:
            found = self._whose[id(code)] = code, users(code), _pythons(code)
        return found

    def note(self, frame: types.FrameType, *, users_own: bool) -> None:
        """Note a function, if it is a module's or was called by one: torch and this package call others."""
        code, caller = frame.f_code, frame.f_back
        by_user = caller is not None and self._known(caller.f_code)[1] and self.reads.ran(caller.f_code)
        if not users_own:
            if by_user:
                self.reads.effects.append(f"it calls {code.co_name} of Python's library")
            return
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        cls: Any = None
        if isinstance(first, nn.Module):
            cls = getattr(awake(first), PATCHED, awake(first))
        held = [vars(owner).get(code.co_name) for owner in getattr(cls, "__mro__", ())]
        if by_user:
            held.append(frame.f_globals.get(code.co_name))
        functions = (getattr(value, "fget", getattr(value, "__func__", value)) for value in held)
        found = [f for f in functions if isinstance(f, types.FunctionType) and f.__code__ is code]
        if found:
            self.reads.functions.setdefault(code, found[0])
        if by_user or found:
            self.reads.runs(code, cls)


def _of_torch(function: Any) -> bool:
    own = getattr(function, "__self__", None)
    named = str(getattr(function, "__module__", None) or getattr(own, "__module__", None) or "") + "."
    return isinstance(own, Tensor | torch.Size) or named.startswith(("torch.", "nxcore."))
