"""Handles in plain Python: a launch through ctypes, and the choice by alignment.

The fallback on machines that can't build ``launcher.c``.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, ClassVar

from torch import Tensor

ALIGNED = 16  # bytes: the widest load


def addresses(tensors: tuple[Tensor | None, ...]) -> list[int]:
    """Return where each tensor's data lies, 0 for None."""
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


class CtypesHandle:
    """A kernel bound to its grid and its values.

    Parameters
    ----------
    function, context : int
        The driver's.
    index : int
        Of the device.
    shape : tuple of int
        Grid and block, x first.
    shared : int
        Bytes of dynamic shared memory.
    pointers : int
        How many tensors a call passes.
    values : bytes
        What follows the pointers in the kernel's struct.
    pack : callable
        From new values to bytes.
    name : str
        The kernel's, for messages.
    """

    driver: ClassVar[Any] = None
    raw_stream: ClassVar[Any] = None
    several: ClassVar[bool] = False

    def __init__(
        self,
        function: int,
        context: int,
        index: int,
        shape: tuple[int, ...],
        shared: int,
        pointers: int,
        values: bytes,
        pack: Any,
        name: str,
    ) -> None:
        self.function = ctypes.c_void_p(function)
        self.context = ctypes.c_void_p(context)
        self.index = index
        self.shape = tuple(ctypes.c_uint(n) for n in (*shape, shared))
        self.pointers = pointers
        self.values = values
        self.pack = pack
        self.head = struct.Struct(f"@{pointers}P").pack
        self.name = name

    def __call__(self, *tensors: Tensor | None, tail: tuple[Any, ...] | None = None) -> None:
        """Launch on torch's current stream; ``tail`` replaces the values given at construction."""
        self.launch(addresses(tensors), tail)

    def launch(self, pointers: list[int], tail: tuple[Any, ...] | None) -> None:
        """Launch with these addresses."""
        if len(pointers) != self.pointers:
            raise TypeError(f"{self.name} takes {self.pointers} tensors, got {len(pointers)}")
        block = self.head(*pointers) + (self.values if tail is None else self.pack(*tail))
        parameters = (ctypes.c_char_p * 1)(block)
        stream = ctypes.c_void_p(self.raw_stream(self.index))
        status = INVALID_CONTEXT
        if not self.several:
            status = self.driver.cuLaunchKernel(self.function, *self.shape, stream, parameters, None)
        if status == INVALID_CONTEXT:  # another device's may be current, or none in a new thread
            self._check("cuCtxPushCurrent", self.driver.cuCtxPushCurrent_v2(self.context))
            status = self.driver.cuLaunchKernel(self.function, *self.shape, stream, parameters, None)
            self.driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        self._check("cuLaunchKernel", status)

    def _check(self, what: str, status: int) -> None:
        if status:
            name = ctypes.c_char_p()
            self.driver.cuGetErrorName(status, ctypes.byref(name))
            raise RuntimeError(
                f"{self.name}: {what} returned {(name.value or b'an error').decode()} ({status})"
            )


INVALID_CONTEXT = 201


class Guarded:
    """Two launches of one kernel: one for aligned data, one for any.

    Parameters
    ----------
    vector : Launch or None
        Called where every tensor's data is 16-byte aligned.
    scalar : Launch
        Called elsewhere.
    """

    def __init__(self, vector: Any, scalar: Any) -> None:
        self.vector = vector
        self.scalar = scalar

    def __call__(self, *tensors: Tensor | None, tail: tuple[Any, ...] | None = None) -> None:
        """Launch what fits where the data lies."""
        pointers = addresses(tensors)
        bits = 0
        for pointer in pointers:
            bits |= pointer
        aligned = self.vector is not None and bits % ALIGNED == 0
        (self.vector if aligned else self.scalar).launch(pointers, tail)
