"""Numba's simulator of CUDA, with the threads of a block in turns: each runs until its barrier or its end.

The simulator starts a thread of Python for each of a block, which run at once, and asks each in a loop
whether it waits: most of the time is the asking. Here one runs at a time. All run in the order of their
indices until the first barrier, in the reverse order until the second, and so on: what reads before a thread
of a higher index has written differs from what reads after it.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class Point:
    """One thread of a block, as kernels ask for it.

    Parameters
    ----------
    block : Block
        Whose it is.
    at, index : Dim3
        Of the block in the grid, and of the thread in the block.
    """

    __slots__ = ("block", "blockIdx", "threadIdx", "thread_id")

    def __init__(self, block: Block, at: Any, index: Any) -> None:
        self.block, self.blockIdx, self.threadIdx = block, at, index
        x, y, _ = block.shape
        self.thread_id = index.x + x * (index.y + y * index.z)

    def syncthreads(self) -> None:
        """Wait for all threads of the block that have not ended."""
        self.block.wait(self)

    def syncthreads_count(self, value: Any) -> Any:
        """Return for how many threads the value is true."""
        return np.count_nonzero(self._all(value))

    def syncthreads_and(self, value: Any) -> int:
        """Return 1 if the value is true for all threads."""
        return int(np.all(self._all(value)))

    def syncthreads_or(self, value: Any) -> int:
        """Return 1 if the value is true for a thread."""
        return int(np.any(self._all(value)))

    def _all(self, value: Any) -> Any:
        self.block.state[self.threadIdx.x, self.threadIdx.y, self.threadIdx.z] = value
        self.syncthreads()
        values = self.block.state.copy()
        self.syncthreads()
        return values


class _EndedError(RuntimeError):
    """Another thread of the block failed."""


class Block:
    """The threads of one block; takes the place of the simulator's ``BlockManager``.

    Parameters
    ----------
    function : callable
        The kernel.
    grid, shape : tuple of int
        Of the launch.
    debug : bool
        Whether a division by zero is an error.
    """

    running: Point | None = None
    """The thread whose turn it is: one kernel is simulated at a time."""

    def __init__(
        self, function: Callable[..., None], grid: tuple[int, ...], shape: tuple[int, ...], debug: bool
    ) -> None:
        self.function, self.shape, self.debug = function, shape, debug
        self.state = np.zeros(shape, dtype=np.bool_)
        self.error: tuple[Exception, Any] | None = None
        self.turns, self.waiting = list[Any](), list[Any]()
        self.over = threading.Lock()

    def run(self, at: tuple[int, ...], *args: Any) -> None:
        """Run all threads; raise the error of the first that fails."""
        index = sys.modules["numba.cuda.simulator.kernelapi"].Dim3
        here = index(*at)
        self.left = [Point(self, here, index(*point)) for point in np.ndindex(*self.shape)]
        self.left.reverse()
        self.args = args
        self.over.acquire()
        self._work()
        self.over.acquire()
        if self.error:
            raise self.error[0].with_traceback(self.error[1])

    def wait(self, point: Point) -> None:
        """Let all others run until they wait, too, or end."""
        turn = threading.Lock()
        turn.acquire()
        self.waiting.append(turn)
        self._next()
        turn.acquire()
        Block.running = point
        if self.error:
            raise _EndedError

    def _work(self) -> None:
        """Begin threads, each after the end of the one before, then give the turn away."""
        while self.left:
            Block.running = point = self.left.pop()
            try:
                with np.errstate(divide="raise") if self.debug else contextlib.nullcontext():
                    self.function(*self.args)
            except _EndedError:
                break
            except Exception as error:  # noqa: BLE001  a kernel's, whatever it is
                if self.error is None:
                    where = f"tid={list(point.threadIdx)} ctaid={list(point.blockIdx)}"
                    told = type(error)(f"{where}: {error}" if str(error) else where)
                    self.error = told, error.__traceback__
                self.left.clear()
        self._next()

    def _next(self) -> None:
        """Give the turn to one that was at the last barrier, or begin one, or go on to the next barrier."""
        if self.left:
            _thread.start_new_thread(self._work, ())
            return
        if not self.turns:
            self.turns, self.waiting = self.waiting, []
        (self.turns.pop() if self.turns else self.over).release()


_swapped: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
"""The globals of functions of this launch, and what was in them, by their address."""


def _swap(function: Any, fake: Any) -> None:
    """Put the module of a launch in place of ``cuda`` into the globals of a function, until the launch ends.

    The simulator does so at every call of a device function, and reverts it at its end, where another thread
    may be inside of it.
    """
    names = function.__globals__
    if id(names) in _swapped:
        return
    there = {name: value for name, value in names.items() if value is sys.modules["numba.cuda"]}
    _swapped[id(names)] = names, there
    names.update(dict.fromkeys(there, fake))


@contextlib.contextmanager
def _launch(function: Any, fake: Any) -> Iterator[None]:
    _swap(function, fake)
    try:
        yield
    finally:
        for names, there in _swapped.values():
            names.update(there)
        _swapped.clear()


def take_turns() -> None:
    """Have the simulator, once it is there, run threads in turns."""
    kernel: Any = sys.modules.get("numba.cuda.simulator.kernel")
    if kernel is None or kernel.BlockManager is Block:
        return
    api: Any = sys.modules["numba.cuda.simulator.kernelapi"]
    arrays: Any = sys.modules["numba.cuda.simulator.cudadrv.devicearray"]
    call, attribute = kernel.FakeCUDAKernel.__call__, arrays.FakeWithinKernelCUDAArray.__getattr__

    def called(self: Any, *args: Any) -> Any:
        if not self._device:
            return call(self, *args)
        _swap(self.fn, kernel._kernel_context)
        return self.fn(*args)

    def shared(self: Any, shape: Any, dtype: Any) -> Any:
        # The simulator reads the whole stack, with the text of each line, to find the line that asks.
        caller = sys._getframe(1)
        key = caller.f_code.co_filename, caller.f_lineno
        if shape == 0:
            return dynamic(self, shape, dtype)
        if key not in self._allocations:
            kind = api.numpy_support.as_dtype(dtype) if isinstance(dtype, api.types.Type) else dtype
            self._allocations[key] = np.empty(shape, kind)
        return self._allocations[key]

    def attribute_of(self: Any, name: str) -> Any:
        # The simulator lists all attributes first: an array of records has its fields, too.
        array = self._item._ary
        return attribute(self, name) if array.dtype.names else getattr(array, name)

    dynamic = api.FakeCUDAShared.array
    kernel.BlockManager = Block
    kernel.swapped_cuda_module = _launch
    kernel.FakeCUDAKernel.__call__ = called
    api.FakeCUDAShared.array = shared
    arrays.FakeWithinKernelCUDAArray.__getattr__ = attribute_of
    api.threading = types.SimpleNamespace(current_thread=lambda: Block.running)
