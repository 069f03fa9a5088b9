"""Kernels on the CPU: the shared library that g++ made of one, its threads' stacks, and its messages."""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from nxcore_cuda.machine.compile import emulated
from nxcore_cuda.machine.handle import addresses
from nxcore_cuda.machine.instance import Instance

STACK = 65536  # as in emulator.h
MESSAGE = 1000


class EmulatorError(RuntimeError):
    """An error of a kernel that would hang, or be undefined, on a GPU."""


class _Memory:
    """Stacks and dynamic shared memory of one block, and the lock of the thread that runs it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks: dict[str, mmap.mmap] = {}

    def of(self, what: str, size: int) -> Any:
        """Return at least ``size`` bytes, kept for the next launch."""
        block = self.blocks.get(what)
        if block is None or len(block) < size:
            # Private, so that a forked process has its own; pages that nothing touches cost nothing.
            block = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.blocks[what] = block
        return (ctypes.c_char * len(block)).from_buffer(block)


_memory = _Memory()


class EmulatedHandle:
    """A kernel to run on CPU tensors; the same calls as the handles that launch on a GPU.

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
        shape: tuple[int, ...],
        shared: int,
        pointers: int,
        layout: str,
        values: tuple[Any, ...],
    ) -> None:
        self.instance = instance
        library = ctypes.CDLL(str(emulated(instance)))
        self.run = library[f"{instance.symbol}__emulated"]
        self.run.argtypes = [
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        self.shape = (ctypes.c_uint * 6)(*shape)
        self.threads = shape[3] * shape[4] * shape[5]
        self.shared = shared
        self.pointers = pointers
        self.pack = struct.Struct(f"@{pointers}P{layout}0q").pack
        self.values = values
        self.size = len(
            self.pack(*[0] * pointers, *values)
        )  # values of another layout are refused now, not at the first call

    def __call__(self, *tensors: Tensor | None, tail: tuple[Any, ...] | None = None) -> None:
        """Run all blocks; ``tail`` replaces the values given at construction."""
        self.launch(addresses(tensors), tail)

    def launch(self, pointers: list[int], tail: tuple[Any, ...] | None) -> None:
        """Run all blocks with these addresses."""
        if len(pointers) != self.pointers:
            raise TypeError(f"{self.instance.symbol} takes {self.pointers} tensors, got {len(pointers)}")
        self.go(self.pack(*pointers, *(self.values if tail is None else tail)))

    def go(self, args: bytes) -> None:
        """Run all blocks with these bytes of parameters."""
        message = ctypes.create_string_buffer(MESSAGE)
        with _memory.lock:
            stacks = _memory.of("stacks", STACK * (self.threads + 1))
            shared = _memory.of("shared", self.shared)
            failed = self.run(args, len(args), self.shape, stacks, shared, self.shared, message, len(message))
        if failed:
            raise EmulatorError(f"{self.instance.symbol}: {message.value.decode()}")


def prepare(
    instance: Instance,
    device: torch.device,
    *rest: Any,
) -> tuple[Any, ...]:
    """Return the parts of a handle."""
    return instance, *rest


_handles: weakref.WeakValueDictionary[int, EmulatedHandle] = weakref.WeakValueDictionary()
CONTEXT = 1


def _launch(function: int, *rest: Any) -> int:
    """Take the place of ``cuLaunchKernel``; a failed launch is made again by Python, which says why."""
    handle = _handles[function]
    try:
        handle.go(ctypes.string_at(rest[8][0], handle.size))
    except EmulatorError:
        return 1
    return 0


def _context(found: Any) -> int:
    """Take the place of ``cuCtxGetCurrent``."""
    found[0] = CONTEXT
    return 0


_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_DRIVER = (
    ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, _POINTERS, ctypes.c_void_p
    )(_launch),
    ctypes.CFUNCTYPE(ctypes.c_int, _POINTERS)(_context),
)


def bound(*args: Any) -> tuple[Any, ...]:
    """Return what a noted launch is made of; see ``machine.replay``."""
    instance, _, shape, shared, pointers, layout, values = args
    handle = EmulatedHandle(*prepare(*args))
    _handles[id(handle)] = handle
    tail = struct.Struct(f"@{layout}0q")

    def pack(*numbers: Any, of: EmulatedHandle = handle) -> bytes:  # which lives as long as the launch
        return tail.pack(*numbers)

    driver = (*(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in _DRIVER), 0, 0, 0)
    return id(handle), CONTEXT, 0, shape, shared, pointers, pack(*values), pack, instance.symbol, driver
