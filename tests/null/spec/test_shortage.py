"""Errors of the machine are no kernel's fault; errors of a kernel are."""

import errno
import subprocess

import pytest
import torch

from nxcore.spec.shortage import shortage
from tests.table import for_each


def caused(by):
    """Return an error that arose from another, as a compiler's does."""
    try:
        try:
            raise by
        except type(by) as error:
            raise RuntimeError("it can't be compiled") from error
    except RuntimeError as found:
        return found


@for_each(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.EMFILE, "Too many open files"),
        PermissionError(errno.EACCES, "Permission denied"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        MemoryError(),
        RecursionError("maximum recursion depth exceeded"),
        KeyboardInterrupt(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("unit.cu: fatal error: error writing to unit.o: No space left on device"),
        RuntimeError("can't start new thread"),
        ImportError("cannot import name 'x' from partially initialized module 'numba'"),
        caused(MemoryError()),
        caused(caused(OSError(errno.EDQUOT, "Disk quota exceeded"))),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_a_shortage_passes(error):
    assert shortage(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("an illegal memory access was encountered"),
        RuntimeError("out of resource: shared memory, Required: 300000"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        subprocess.CalledProcessError(1, "nvcc"),
        caused(ValueError("3 is not 4")),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_another_error_is_the_kernels(error):
    assert not shortage(error)


def test_errors_that_lead_round_end():
    error = RuntimeError("one")
    error.__cause__ = other = RuntimeError("two")
    other.__cause__ = error
    assert not shortage(error)
