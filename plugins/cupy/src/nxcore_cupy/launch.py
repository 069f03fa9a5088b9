"""Launch: nxcore-cuda's plans, with CuPy to load and to launch their kernels."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
import torch
from nxcore_cuda.machine import load
from nxcore_cuda.machine.absent import planned
from nxcore_cuda.machine.handle import addresses
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.replay import replay
from torch import Tensor

from nxcore.plugin import Kernel, Problem, hosted
from nxcore_cupy import HOST, PLANNERS
from nxcore_cupy.compile import compiled


def plan(problem: Problem) -> Callable[..., Any]:
    """Return what nxcore-cuda plans for a problem, with launches of CuPy's."""
    with hosted(HOST):
        return PLANNERS[problem.op].plan(problem)


def again(kernel: Kernel, problem: Problem, *tile: Any) -> Callable[..., Any]:
    """Return the plan of a problem with launches that are noted; see ``Kernel.replay``."""
    return replay(_planner(kernel.op), problem, *tile, bound=_bound)


def _planner(op: str) -> Kernel:
    """Return the row of CUDA for an operator; an expression's has none of its own."""
    return PLANNERS.get(op, PLANNERS["pointwise"])


def _bound(*args: Any) -> tuple[Any, ...]:
    """Return what a noted launch is made of; see ``nxcore_cuda.machine.replay``."""
    handle, (*_, shape, shared, pointers, _, _) = Handle(*args), args

    def pack(*values: Any, of: Handle = handle) -> bytes:  # whose module stays loaded as long as the launch
        return bytes(of.pack(*values))

    made = handle.function.ptr, load.context(handle.index), handle.index, shape, shared, pointers
    return *made, handle.values, pack, handle.name


def ahead(kernel: Kernel, problem: Problem, capability: tuple[int, int]) -> None:
    """Compile what a plan of ``problem`` loads; see ``Backend.ahead``."""

    def make(
        instance: Instance, _device: Any, _shape: Any, _shared: int, pointers: int, layout: str, *_: Any
    ) -> None:
        compiled(_unit(instance, 8 * pointers + _tail(layout).size), capability, instance.symbol)

    planned(_planner(kernel.op), problem, make)


def _tail(layout: str) -> struct.Struct:
    return struct.Struct(f"@{layout}0q")  # the pointers before it end at a multiple of 8


def _unit(instance: Instance, size: int) -> str:
    """Return the text of an instance, with a check that its struct has as many bytes as are packed."""
    return instance.text + f'static_assert(sizeof({instance.args}) == {size}, "as packed");\n'


class _TorchStream:
    """A stream of torch's, as CuPy takes another library's."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


_streams: dict[int, Any] = {}


def stream(index: int) -> Any:
    """Return torch's current stream of a device as CuPy's, made once for each."""
    pointer = torch._C._cuda_getCurrentRawStream(index)  # noqa: SLF001  as Triton and torch's own compiler do
    found = _streams.get(pointer)
    if found is None:
        found = _streams[pointer] = cupy.cuda.Stream.from_external(_TorchStream(pointer))
    return found


class Handle:
    """A kernel bound to its grid and its values, compiled and loaded.

    Parameters
    ----------
    shape : tuple of int
        Grid and block, x first.
    shared : int
        Bytes of dynamic shared memory.
    pointers : int
        How many tensors a call passes.
    values : tuple
        What follows the pointers in the kernel's struct.
    """

    def __init__(
        self,
        instance: Instance,
        device: torch.device,
        shape: tuple[int, ...],
        shared: int,
        pointers: int,
        layout: str,
        values: tuple[Any, ...],
    ) -> None:
        self.name = instance.symbol
        self.index = torch.cuda.current_device() if device.index is None else device.index
        self.several = torch.cuda.device_count() > 1
        self.grid, self.block = shape[:3], shape[3:]
        self.shared = shared
        self.pointers = pointers
        self.head = struct.Struct(f"@{pointers}P").pack
        tail = _tail(layout)
        self.pack = tail.pack
        self.values = tail.pack(*values)
        # CuPy passes a numpy array of one element by value: here one of the struct's size.
        self.struct = np.dtype((np.void, 8 * pointers + tail.size))
        text = _unit(instance, self.struct.itemsize)
        path = compiled(text, load.capability(self.index), self.name)
        with self._current():
            kernel = cupy.RawModule(path=str(path)).get_function(self.name)
            if shared and shared > kernel.max_dynamic_shared_size_bytes:  # handles of one kernel share it
                kernel.max_dynamic_shared_size_bytes = shared
            self.function = kernel.kernel  # this device's: the RawKernel would look it up at every call

    def _current(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.device(self.index) if self.several else contextlib.nullcontext()

    def __call__(self, *tensors: Tensor | None, tail: tuple[Any, ...] | None = None) -> None:
        """Launch on torch's current stream; ``tail`` replaces the values given at construction."""
        self.launch(addresses(tensors), tail)

    def launch(self, pointers: list[int], tail: tuple[Any, ...] | None) -> None:
        """Launch with these addresses."""
        if len(pointers) != self.pointers:
            raise TypeError(f"{self.name} takes {self.pointers} tensors, got {len(pointers)}")
        packed = self.head(*pointers) + (self.values if tail is None else self.pack(*tail))
        args = (np.frombuffer(packed, self.struct),)
        if self.several:
            with self._current():
                self.function(self.grid, self.block, args, self.shared, stream(self.index))
        else:
            self.function(self.grid, self.block, args, self.shared, stream(self.index))
