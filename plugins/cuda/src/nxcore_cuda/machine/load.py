"""The CUDA driver through ctypes: from an image to a function that can be launched."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator
from typing import Any

from nxcore_cuda.machine.compile import image
from nxcore_cuda.machine.instance import Instance

LEAST_DRIVER = 12000
STATIC_SHARED = 48 * 1024  # bytes that a launch may have without asking, the kernel's own among them
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
OWN_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
KEPT = 4096  # functions that are found without asking the driver

_granted: dict[
    int, int
] = {}  # a function's address -> bytes of dynamic shared memory that its launches may have
_granting = threading.Lock()


class DriverError(RuntimeError):
    """A function of the CUDA driver failed; the message names the error as the driver does."""


@functools.cache
def driver() -> Any:
    """Return the driver's library, initialised. Every address that it takes is passed as a ``c_void_p``."""
    library = ctypes.CDLL("libcuda.so.1")
    found = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(found))
    if found.value < LEAST_DRIVER:
        raise DriverError(f"needs a driver for CUDA 12 or later, found one for CUDA {_release(found.value)}")
    library.cuLaunchKernel.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    _check(library, "cuInit", 0)
    return library


def _release(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _check(library: Any, function: str, *args: Any, what: str = "") -> None:
    status = getattr(library, function)(*args)
    if status:
        name, text, version = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        library.cuGetErrorName(status, ctypes.byref(name))
        library.cuGetErrorString(status, ctypes.byref(text))
        library.cuDriverGetVersion(ctypes.byref(version))
        error = f"{(name.value or b'an unknown error').decode()} ({status}): {(text.value or b'').decode()}"
        said = f"{what}: " if what else ""
        raise DriverError(
            f"{said}{function} returned {error}; the driver is for CUDA {_release(version.value)}"
        )


@functools.cache
def capability(index: int) -> tuple[int, int]:
    """Return a device's capability, (9, 0) for one; torch's own answer would initialise CUDA in torch."""
    library, device = driver(), ctypes.c_int()
    _check(library, "cuDeviceGet", ctypes.byref(device), index)
    numbers = []
    for attribute in CAPABILITY:
        number = ctypes.c_int()
        _check(library, "cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    return numbers[0], numbers[1]


@functools.cache
def context(index: int) -> int:
    """Return the primary context of a device, which torch uses too."""
    library = driver()
    device, found = ctypes.c_int(), ctypes.c_void_p()
    _check(library, "cuDeviceGet", ctypes.byref(device), index)
    _check(library, "cuDevicePrimaryCtxRetain", ctypes.byref(found), device)
    return int(found.value or 0)


@functools.cache
def _library(code: bytes) -> Any:
    library, found = driver(), ctypes.c_void_p()
    _check(library, "cuLibraryLoadData", ctypes.byref(found), code, None, None, 0, None, None, 0)
    return found


@functools.cache
def _image(instance: Instance, capability: tuple[int, int]) -> bytes:
    return image(instance, capability)


@contextlib.contextmanager
def _current(index: int) -> Iterator[Any]:
    """Make a device's context current, and yield the driver; loading doesn't end a capture of this thread."""
    library, mode = driver(), ctypes.c_int(RELAXED)
    _check(library, "cuCtxPushCurrent_v2", ctypes.c_void_p(context(index)))
    _check(library, "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))  # now the mode of before
    try:
        yield library
    finally:
        _check(library, "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        _check(library, "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@functools.lru_cache(KEPT)  # a plan of each problem asks, and each repetition of it without the interpreter
def kernel(instance: Instance, index: int, shared: int, size: int) -> int:
    """Return the function of a kernel in a device's context, compiled and loaded where it isn't yet.

    Parameters
    ----------
    index : int
        Of the device.
    shared : int
        Bytes of dynamic shared memory that its launches want.
    size : int
        Bytes of its arguments: another number in the image means that the two layouts differ.
    """
    code = _image(instance, capability(index))
    found, function, name = ctypes.c_void_p(), ctypes.c_void_p(), instance.symbol
    with _current(index) as library:
        try:
            loaded = _library(code)
        except DriverError as error:
            raise DriverError(f"{name}: {error}") from error
        _check(library, "cuLibraryGetKernel", ctypes.byref(found), loaded, name.encode(), what=name)
        # Asking for the function loads its code now, not at a launch that a graph may be capturing.
        _check(library, "cuKernelGetFunction", ctypes.byref(function), found, what=name)
        if hasattr(library, "cuFuncGetParamInfo"):  # CUDA 12.4 and later
            offset, wanted = ctypes.c_size_t(), ctypes.c_size_t()
            args = (function, ctypes.c_size_t(0), ctypes.byref(offset), ctypes.byref(wanted))
            _check(library, "cuFuncGetParamInfo", *args, what=name)
            if wanted.value != size:
                raise ValueError(f"{name}: its arguments have {wanted.value} bytes, got {size}")
        address = int(function.value or 0)
        with _granting:
            # All launches of a function have what was granted last: it mustn't shrink.
            if address not in _granted:
                own = ctypes.c_int()
                _check(library, "cuFuncGetAttribute", ctypes.byref(own), OWN_SHARED, function, what=name)
                _granted[address] = STATIC_SHARED - own.value
            if shared > _granted[address]:
                what = f"{name} with {shared} bytes of shared memory"
                _check(library, "cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared, what=what)
                _granted[address] = shared
    return address
