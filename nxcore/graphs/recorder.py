"""Recorder: captures work of one device as CUDA graphs, and replays them one after another."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from nxcore.measure.collection import no_collection
from nxcore.spec.device import no_capture_beside, synchronize

Result = TypeVar("Result")
Work = Callable[[], Result]


class Ticket:
    """A ticket of a replay, open as long as its backward pass is possible."""

    __slots__ = ("__weakref__", "open", "place")

    def __init__(self, place: int) -> None:
        self.place, self.open = place, True


class Order:
    """The order of captures that share one memory pool, and which may be replayed.

    The tensors that a capture saves for its backward pass may be in memory that earlier captures used only
    temporarily. So while they are needed, no earlier capture may be replayed. Forward passes run from the
    first capture to the last, and backward passes in reverse, as a network's layers do.
    """

    def __init__(self) -> None:
        self._open: list[weakref.ref[Ticket]] = []
        self._places, self._lock = itertools.count(), threading.Lock()

    def place(self) -> int:
        """Return the place of a new capture."""
        return next(self._places)

    def permits(self, place: int) -> bool:
        """Return whether no later capture is open."""
        with self._lock:
            while self._open:
                last = self._open[-1]()
                if last is not None and last.open:
                    return last.place <= place
                self._open.pop()
        return True

    def enter(self, place: int) -> Ticket:
        """Return the ticket of a permitted forward replay."""
        ticket = Ticket(place)
        with self._lock:
            self._open.append(weakref.ref(ticket))
        return ticket


class Pool:
    """Memory that CUDA graphs share: one may overwrite temporary tensors of another."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def handle(self) -> Any:
        """Torch's handle of the pool; a new one once no graph is left, since torch frees such a pool."""
        if self._handle is None or not self._alive:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle

    def hold(self, graph: Any) -> None:
        """Note a graph with memory in the pool."""
        self._alive.add(graph)

    def leave(self) -> None:
        """Take a new pool for the next graph: a failed capture left this one in an unknown state."""
        self._handle = None


MAKING = threading.RLock()
"""Held during a capture. All captures of a device share a stream, so a capture would record work of another
thread. Two threads could wait for each other here, so it is acquired without blocking."""


class Recorder(Protocol):
    """Captures work on one device; a test may provide one for the CPU."""

    order: Order
    lock: Any
    on_host: bool

    def turn(self) -> None:
        """Let the caller's further work wait for the last replay and its copies."""

    def aside(self, work: Work[Result]) -> Result:
        """Run ``work`` where it could be captured, after the caller's earlier work."""

    def capture(self, work: Work[Result], pool: Pool | None = None) -> tuple[Result, Callable[[], None]]:
        """Return the result of ``work``, and a function that repeats it in the same memory.

        Its memory is in ``pool``, by default the recorder's own.
        """

    def lying(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the memory of a captured one, which other captures may still reuse."""

    def seconds(self, work: Work[object]) -> float:
        """Return the seconds that ``work`` takes, device time included."""

    def dice(self) -> Tensor:
        """Return the state of the device's random generator."""

    def put_back(self, dice: Tensor) -> None:
        """Set that state."""


class CudaRecorder:
    """CUDA graphs of one device, in a shared memory pool (see ``Order``) or in others.

    No two run at a time, whatever their pools: cuBLAS has one workspace for the stream that all are captured
    on. A replay on another stream than the one before waits for that. A replay holds ``lock``, from ``turn``
    until its results are copied.

    Parameters
    ----------
    device : torch.device
        A CUDA device, with its index.
    """

    on_host = False

    def __init__(self, device: torch.device) -> None:
        self.device, self.order = device, Order()
        self._side = torch.cuda.Stream(device)
        self._pool = Pool()
        self._last: torch.cuda.Stream | None = None
        self.lock = threading.RLock()

    def turn(self) -> None:
        """Let the current stream wait for that of the last replay, if they differ."""
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream

    def aside(self, work: Work[Result]) -> Result:
        """Run ``work`` on a separate stream, as torch requires for a capture."""
        current = torch.cuda.current_stream(self.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            result = work()
        current.wait_stream(self._side)
        if self._last == self._side:  # a later wait for the side stream could enter a capture there
            self._last = current
        return result

    def capture(self, work: Work[Result], pool: Pool | None = None) -> tuple[Result, Callable[[], None]]:
        """Return the result of ``work``, and a function that replays it.

        It doesn't use ``torch.cuda.graph``, which returns all cached memory to the device each time.
        """
        graph, pool = torch.cuda.CUDAGraph(), pool or self._pool
        # Garbage may be another graph: to destroy it in this thread would end the capture.
        with no_capture_beside(), torch.cuda.stream(self._side), no_collection():
            torch.cuda.synchronize(self.device)
            # Captures this thread alone: another one may prepare kernels at the same time.
            graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
            try:
                result = work()
            except BaseException:
                pool.leave()
                with contextlib.suppress(RuntimeError, UserWarning):  # it reports the failed capture again
                    graph.capture_end()
                raise
            try:
                graph.capture_end()  # raises if the work continued after a failure
            except BaseException:
                pool.leave()
                raise
        pool.hold(graph)
        return result, graph.replay

    def lying(self, tensor: Tensor) -> Tensor:
        """Return a tensor at the address of ``tensor`` in the pool, which exists as long as its graphs."""
        storage = tensor.untyped_storage()
        there = torch._C._construct_storage_from_data_pointer(  # torch's own graph trees use it
            storage.data_ptr(), tensor.device, storage.nbytes()
        )
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return alias.set_(there, tensor.storage_offset(), tensor.shape, tensor.stride())

    def seconds(self, work: Work[object]) -> float:
        """Return the wall time from an idle device to an idle device."""
        synchronize(self.device)
        began = time.perf_counter()
        work()
        synchronize(self.device)
        return time.perf_counter() - began

    def dice(self) -> Tensor:
        """Return the state of the device's random generator."""
        return torch.cuda.get_rng_state(self.device)

    def put_back(self, dice: Tensor) -> None:
        """Set that state."""
        torch.cuda.set_rng_state(dice, self.device)


_recorders: dict[torch.device, Recorder] = {}


def recorder_of(device: torch.device) -> Recorder | None:
    """Return the recorder of a device; None where there are no CUDA graphs."""
    if device.type != "cuda":
        return None
    return _recorders.get(device) or _recorders.setdefault(device, CudaRecorder(device))


@contextlib.contextmanager
def recording(recorder: CudaRecorder | None) -> Iterator[None]:
    """Have a recorder, if any, serve its device in this block; the graphs of two may run at a time."""
    before = _recorders.copy()
    if recorder is not None:
        _recorders[recorder.device] = recorder
    try:
        yield
    finally:
        _recorders.clear()
        _recorders.update(before)
