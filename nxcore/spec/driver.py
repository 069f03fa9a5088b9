"""Driver: the part of CUDA's L2 cache that is set aside, by the driver's library, which torch has loaded.

A kernel that sets some aside, or leaves its stream an access window, is timed with a cache that others lack.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch


@functools.cache
def library() -> Any:
    """Return the driver's library; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def aside() -> int | None:
    """Return the bytes of the cache that the current context sets aside; None where that is unknown."""
    found = ctypes.c_size_t()
    driver = library()  # 6 is the limit CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    known = driver is not None and driver.cuCtxGetLimit(ctypes.byref(found), 6) == 0
    return found.value if known else None


def set_aside(nbytes: int) -> None:
    """Set so many bytes aside, and let lines that were kept be as others are."""
    library().cuCtxSetLimit(6, ctypes.c_size_t(nbytes))
    library().cuCtxResetPersistingL2Cache()


def window() -> bytes | None:
    """Return the access window of the current stream, as the driver's structure; None where it is unknown."""
    found, driver = ctypes.create_string_buffer(64), library()
    if driver is None:
        return None
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    known = driver.cuStreamGetAttribute(stream, 1, found) == 0  # CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW
    return found.raw[:28] if known else None  # behind an address and a size are three numbers of 32 bits


def set_window(value: bytes) -> None:
    """Give the current stream an access window."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    library().cuStreamSetAttribute(stream, 1, ctypes.create_string_buffer(value, 64))


def left(before: tuple[int | None, bytes | None]) -> str:
    """Return which of ``aside`` and ``window`` differs from ``before``, and put it back; empty if neither."""
    found = ""
    for what, now, was, put in zip(WHAT, (aside(), window()), before, (set_aside, set_window), strict=True):
        if was is not None and now != was:
            put(was)  # type: ignore[operator]  # each takes what its reader returns
            found = found or f"it left {what} changed"
    return found


WHAT = ("the part of the L2 cache that is set aside", "the access window of the stream")
