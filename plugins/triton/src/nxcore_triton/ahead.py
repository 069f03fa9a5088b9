"""Compiling for a device that isn't here: a plan's launches compile to Triton's cache, on fake tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from nxcore.plugin import Kernel, Problem, TensorMeta, hosted
from nxcore_triton.launch import Launch

WARP = 32


class _Absent:
    """Takes the place of Triton's driver: it knows the device's capability, and launches nothing."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.arch = 10 * capability[0] + capability[1]

    def get_current_target(self) -> GPUTarget:
        """Return the device that code is compiled for."""
        return GPUTarget("cuda", self.arch, WARP)

    def get_current_device(self) -> int:
        """Return a number for the device: Triton keeps a kernel's versions by it."""
        return self.arch

    def get_current_stream(self, _device: int) -> int:
        """Return the default stream."""
        return 0


class Compiled(Launch):
    """A launch that only compiles, for aligned pointers."""

    def __call__(self, _tensors: Any, *args: Any) -> None:
        """Compile the kernel."""
        typed = map(_typed, args)
        self.kernel.warmup(*typed, grid=self.grid, **self.constants, num_warps=self.warps)


def ahead(kernel: Kernel, problem: Problem, capability: tuple[int, int]) -> None:
    """Compile what a call of ``problem`` launches; see ``Backend.ahead``.

    The call runs on tensors without data, and each launch compiles its kernel instead. Where there is a GPU
    of that capability, other threads may launch at the same time.
    """
    if not kernel.takes(problem):
        return
    with hosted(Compiled), _driven(capability), FakeTensorMode():
        kernel.plan(problem)(
            *(_filled(p.kind, a) for p, a in zip(problem.spec.params, problem.args, strict=True))
        )


@contextlib.contextmanager
def _driven(capability: tuple[int, int]) -> Iterator[None]:
    """Have Triton compile for a capability; for that of a GPU that is here by Triton's own driver."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == capability:
        yield
        return
    driver.set_active(_Absent(capability))
    try:
        yield
    finally:
        driver._active = None  # noqa: SLF001  reset_active would look for a device


def _typed(value: Any) -> Any:
    """Return the dtypes of tensors in their place: Triton takes these for aligned pointers."""
    if isinstance(value, tuple):
        return tuple(map(_typed, value))
    return MockTensor(value.dtype) if isinstance(value, Tensor) else value


def _filled(kind: str, value: Any) -> Any:
    """Return an argument of a call: a tensor for its description, and any number for a type of number."""
    if isinstance(value, TensorMeta):
        return value.empty()
    if isinstance(value, tuple):
        return tuple(_filled(kind, v) for v in value)
    return value(2) if kind in ("scalar", "operand") and isinstance(value, type) else value
