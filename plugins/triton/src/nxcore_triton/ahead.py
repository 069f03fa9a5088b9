"""Compiling for a device that isn't here: a plan's launches compile to Triton's cache, on fake tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from nxcore.plugin import Kernel, Problem, TensorMeta
from nxcore_triton.launch import Launch

WARP = 32


class _Absent:
    """Takes the place of Triton's driver: it knows the device's capability, and launches nothing.

    Parameters
    ----------
    capability : tuple of int
    """

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


def ahead(kernel: Kernel, problem: Problem, capability: tuple[int, int]) -> None:
    """Compile what a call of ``problem`` launches; see ``Backend.ahead``.

    The call runs on tensors without data, and each launch compiles its kernel instead.
    """
    if not kernel.takes(problem):
        return
    with _driven(_Absent(capability)), _compiled_alone(), FakeTensorMode():
        kernel.plan(problem)(
            *(_filled(p.kind, a) for p, a in zip(problem.spec.params, problem.args, strict=True))
        )


@contextlib.contextmanager
def _driven(absent: _Absent) -> Iterator[None]:
    driver.set_active(absent)
    try:
        yield
    finally:
        driver._active = None  # noqa: SLF001  reset_active would look for a device


@contextlib.contextmanager
def _compiled_alone() -> Iterator[None]:
    """Have launches compile their kernels, for aligned pointers, and launch nothing."""
    own: Any = Launch  # a method is replaced
    original = own.__call__

    def compile(launch: Any, _tensors: Any, *args: Any) -> None:
        typed = map(_typed, args)
        launch.kernel.warmup(*typed, grid=launch.grid, **launch.constants, num_warps=launch.warps)

    own.__call__ = compile
    try:
        yield
    finally:
        own.__call__ = original


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
