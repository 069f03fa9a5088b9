"""Compiling, and running on as many threads as torch does."""

import contextlib
import ctypes
import functools
import multiprocessing
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.core.runtime import rtsys
from numba.np.ufunc import parallel as pool

from nxcore.plugin import Kernel, Launched, Problem, compiling, host, hosted, note, preserved
from nxcore_numba.cache import kept

SMALL = 32_768
"""Elements below which waking the other threads costs more than they save."""

RELEASE, LOADED = tuple(numba.version_info.short), (0, 68)
"""Numba's release, and the one whose cache ``_ready`` knows how to read."""

REPLAYING = "numba notes"
"""The host of plans whose kernels are noted instead of run."""

COMPILE = {"nogil": True, "error_model": "numpy"}

_alone = threading.Lock()
# A worker that was forked before this module was loaded is known by its parent alone.
_forked = multiprocessing.parent_process() is not None and multiprocessing.get_start_method(
    allow_none=True
) in (None, "fork")


def _after_fork() -> None:
    global _forked  # noqa: PLW0603  the one thing a child must know
    _forked = True


# GNU OpenMP ends, or never wakes, a forked child whose parent has used it, be it through torch alone.
os.register_at_fork(after_in_child=_after_fork)


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile ``function`` on first use, and keep the result in nxcore's folder or ``NUMBA_CACHE_DIR``."""
    if function is None:
        return lambda f: jit(f, **options)
    return kept(numba.njit(**(COMPILE | options))(function), function)


def _ready(kernel: Any, signature: Any) -> None:
    """Have ``kernel`` compiled for ``signature``: by an earlier plan, or from disk where it lies there.

    Numba's own way there first imports all that compiling may need: half a second of a process's start.
    """
    if signature.args in kernel.overloads:
        return
    found = None
    if RELEASE == LOADED:
        rtsys.initialize(kernel.targetctx)
        with contextlib.suppress(AttributeError, OSError):  # such as no folder for the cache
            found = kernel._cache._load_overload(signature, kernel.targetctx)  # noqa: SLF001  no public way to read the cache
            if found is not None:
                kernel.add_overload(found)
    if found is None:
        compiling(f"{kernel.py_func.__name__}{signature.args}")
    kernel.compile(signature)


@functools.cache
def _layer() -> tuple[Any, Callable[[], int], Callable[[int], Any]]:
    """Start Numba's threads.

    OpenMP is torch's too, and Numba sets how many threads it has, for the thread that starts Numba's: so that
    is one of its own, which ends.

    Returns
    -------
    lock : context manager
        What a parallel call must hold: one of Numba's layers ends the process on concurrent calls.
    count, set_count : callable
        The number of threads that Numba uses in the calling thread; without the locks of Numba's own
        functions where these are found, which cost more than some calls.
    """
    with preserved():
        starter = threading.Thread(target=numba.get_num_threads, name="nxcore starts numba")
        starter.start()
        starter.join()
    lock = _alone if numba.threading_layer() == "workqueue" else contextlib.nullcontext()
    count = getattr(pool, "_get_num_threads", numba.get_num_threads)
    return lock, count, getattr(pool, "_set_num_threads", numba.set_num_threads)


def team(serial: Any, parallel: Any, signature: Any, elements: int) -> Callable[..., Any]:
    """Return the compiled kernel for a problem of that size, which of the two or both.

    Parameters
    ----------
    serial, parallel : dispatcher
        The kernel without and with threads, of one signature; they return the same bits.
    signature : numba signature
        What to compile now: exactly the types of the arguments, or a call compiles once more.
    elements : int
        The elements that the call reads or writes.

    Returns
    -------
    callable
        Takes the kernel's arguments.
    """
    if elements < SMALL or _forked:
        _ready(serial, signature)
        return _noted(serial, signature, ()) if host() is REPLAYING else serial
    # Of the two only the one that the call needs now: each takes a second or two. Numba compiles the
    # other where torch's number of threads changes.
    lock, count, set_count = _layer()  # before anything is compiled, which would start Numba's threads too
    _ready(serial if torch.get_num_threads() == 1 else parallel, signature)
    limit = numba.config.NUMBA_NUM_THREADS
    if host() is REPLAYING:
        if lock is _alone or not hasattr(count, "argtypes"):
            raise ValueError("parallel calls wait for one another, or Numba's functions aren't those of C")
        wanted = serial if torch.get_num_threads() == 1 else parallel
        return _noted(wanted, signature, (_address(count), _address(set_count), limit))

    def call(*arguments: Any) -> Any:
        threads = min(torch.get_num_threads(), limit)
        if threads == 1 or _forked:
            return serial(*arguments)
        with lock:
            before = count()  # of the calling thread, and the program's own
            if before == threads:
                return parallel(*arguments)
            set_count(threads)
            try:
                return parallel(*arguments)
            finally:
                set_count(before)

    return call


def replay(kernel: Kernel, problem: Problem) -> Callable[..., Any]:
    """Return the plan of a problem with kernels that are noted instead of run; see ``Kernel.replay``."""
    with hosted(REPLAYING):
        found: Callable[..., Any] = kernel.planner(problem)
    return found


def _noted(kernel: Any, signature: Any, team: tuple[int, ...]) -> Callable[..., None]:
    """Return what notes a compiled kernel's arguments, as its machine code takes them."""
    compiled = kernel.overloads[signature.args]
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)

    def call(*arguments: Any) -> None:
        taken = Words()
        for kind, value in zip(signature.args, arguments, strict=True):
            taken.add(kind, value)
        note(taken.launched(address, team, (compiled, arguments)))

    return call


LEAST_ADDRESS = 1 << 32
"""Integers below this one are numbers: no memory lies there."""

TABLE = 8192
"""The most bytes of an array that holds addresses."""


class Words:
    """A kernel's arguments as Numba passes them: arrays by their fields, tuples by their items."""

    def __init__(self) -> None:
        self._words = [0, 0]  # where a return value and an error go, both unused
        self._tables: list[tuple[int, bytes]] = []
        self._floats = b""

    def add(self, kind: Any, value: Any) -> None:
        """Add an argument of a type of Numba's."""
        if isinstance(kind, types.BaseTuple):
            for k, v in zip(kind, value, strict=True):
                self.add(k, v)
        elif isinstance(kind, types.Array):
            # The first two are for memory that Numba counts the references of.
            place = len(self._words) + 4
            fields = (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
            self._words.extend(map(int, fields))
            if value.dtype == np.int64 and value.size and value.max() >= LEAST_ADDRESS:
                if value.nbytes > TABLE or not value.flags.c_contiguous:
                    raise ValueError(f"addresses in an array of {value.nbytes} bytes")
                self._tables.append((place, value.tobytes()))
        elif isinstance(kind, types.Float):
            self._floats += struct.pack("<d" if kind.bitwidth == 64 else "<f4x", value)
        else:
            self._words.append(int(value))

    def launched(self, address: int, team: tuple[int, ...], keep: object) -> Launched:
        """Return a call of the function at an address, with tables of addresses behind its words."""
        count = len(self._words)
        block = struct.pack(f"<{count}q", *self._words) + bytes(8)
        inside = [(0, 8 * count), (8, 8 * count)]
        for place, table in self._tables:
            inside.append((8 * place, len(block)))
            block += table
        numbers = struct.unpack(f"<{len(block) // 8}q", block)
        moved = {at for at, _ in inside}
        pointers = [(8 * i, n) for i, n in enumerate(numbers) if n >= LEAST_ADDRESS and 8 * i not in moved]
        return Launched(
            address,
            0,
            (),
            block,
            tuple(range(0, 8 * count, 8)),
            tuple(pointers),
            inside=tuple(inside),
            floats=self._floats,
            team=team,
            keep=keep,
        )


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
