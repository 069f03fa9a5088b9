"""What captures work into CUDA graphs that share one pool of memory, and replays them one after another."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Work = Callable[[], Result]


class Recorder(Protocol):
    """Captures work on one device; a test may bring one for the CPU."""

    def aside(self, work: Work[Result]) -> Result:
        """Run ``work`` where it could be captured, after what the caller has asked for."""

    def capture(self, work: Work[Result]) -> tuple[Result, Callable[[], None]]:
        """Return what ``work`` returned, and what does its work again in the same memory."""

    def shared(self, role: str, like: Tensor) -> Tensor:
        """Return memory as ``like``, the same to everybody for a role; its content lasts for one replay."""

    def seconds(self, work: Work[object]) -> float:
        """Return how long ``work`` takes, the device's part included."""

    def dice(self) -> Tensor:
        """Return the state of the device's random generator."""

    def put_back(self, dice: Tensor) -> None:
        """Set that state."""


class CudaRecorder:
    """CUDA graphs of one device.

    What a graph needs between forward and backward stays alive, and with it is nobody else's; all the rest of
    its memory is every graph's. So no two may run at a time: a replay on another stream than the one before
    waits for that.

    Parameters
    ----------
    device : torch.device
        A CUDA device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.cuda.Stream(device)
        self._pool: Any = None
        self._last: Any = None
        self._lock = threading.Lock()
        self._shared: weakref.WeakValueDictionary[Any, Tensor] = weakref.WeakValueDictionary()

    def aside(self, work: Work[Result]) -> Result:
        """Run ``work`` on a stream of its own, as torch asks for what is to be captured."""
        current = torch.cuda.current_stream(self.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            result = work()
        current.wait_stream(self._side)
        return result

    def capture(self, work: Work[Result]) -> tuple[Result, Callable[[], None]]:
        """Return what ``work`` returned, and what replays it.

        Not by ``torch.cuda.graph``, which gives all cached memory back to the device each time.
        """
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self._side):
            # Of this thread alone: kernels may be made ready in another one meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = work()
            except BaseException:
                self._pool = None  # nobody knows what a capture that failed has left there
                with contextlib.suppress(RuntimeError):  # it says once more that the capture failed
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> None:
            stream = torch.cuda.current_stream(self.device)
            with self._lock:
                if self._last not in (None, stream):
                    stream.wait_stream(self._last)
                self._last = stream
                graph.replay()

        return result, replay

    def shared(self, role: str, like: Tensor) -> Tensor:
        """Return memory as ``like``, the same to everybody for a role, as long as anybody holds it."""
        key = role, like.shape, like.stride(), like.dtype
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = torch.empty_like(like)
        return found

    def seconds(self, work: Work[object]) -> float:
        """Return the time by the wall from an idle device to an idle device."""
        torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        work()
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - began

    def dice(self) -> Tensor:
        """Return the state of the device's random generator."""
        return torch.cuda.get_rng_state(self.device)

    def put_back(self, dice: Tensor) -> None:
        """Set that state."""
        torch.cuda.set_rng_state(dice, self.device)


_recorders: dict[torch.device, Recorder] = {}


def recorder_of(device: torch.device) -> Recorder | None:
    """Return the one of a device; None where there are no CUDA graphs."""
    if device.type != "cuda":
        return None
    return _recorders.get(device) or _recorders.setdefault(device, CudaRecorder(device))
