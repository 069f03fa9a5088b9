"""Every kernel of every installed backend, held to its operator's spec.

No operator, backend or shape is named here: all come from the registry, so a new kernel is tested the
moment that its plugin is installed. What is true of one operator alone stands in tests/ops.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nxcore.discovery import discover
from nxcore.kernel import Kernel
from nxcore.problem import Problem
from nxcore.spec import OpSpec, Sample
from nxcore.verify import Truth, agreement, leaves

REGISTRY = discover(strict=True)


def _samples(spec: OpSpec, backend: Any, kernel: Kernel, dtype: torch.dtype) -> tuple[Sample, ...]:
    """Return what a kernel is held to: every sample that is no workload, but for what takes long.

    inductor compiles for seconds: the smoke samples on CUDA, and on the CPU one an operator. What it compiles
    is the reference, so this asks whether the compiler is right, not whether the kernel is. JAX compiles for
    a tenth of a second: every sample in float32, and the smoke samples in other types, since each of its
    kernels is the same code between a cast on entry and a cast at the end. Triton's interpreter and Numba's
    simulator take a tenth of a second and more for each: the smoke samples in float16; a device gets all.
    """
    smoke = spec.tagged("smoke")
    if backend.name == "inductor" and not torch.cuda.is_available():
        return smoke[:1] if dtype is torch.float32 else ()
    if backend.name == "inductor" or (backend.name == "jax" and dtype is not torch.float32):
        return smoke
    slow = backend.name == "triton" or (backend.name == "numba" and kernel.variant)
    if slow and dtype is torch.float16 and not torch.cuda.is_available():
        return smoke
    return tuple(s for s in spec.samples if not s.tags & {"bench", "huge"})


KERNELS = [
    pytest.param(
        REGISTRY.spec(kernel.op),
        backend,
        kernel,
        dtype,
        id=f"{kernel.op}-{backend.label(kernel)}-{str(dtype)[6:]}",
    )
    for backend in REGISTRY.backends.values()
    if backend.name != "torch"
    for kernel in backend.kernels
    for dtype in kernel.dtypes
    if _samples(REGISTRY.spec(kernel.op), backend, kernel, dtype)
]
CELLS = [
    pytest.param(*case.values, sample, id=f"{case.id}-{sample.name}")
    for case in KERNELS
    for sample in _samples(*case.values)
]
every_kernel = pytest.mark.parametrize(("spec", "backend", "kernel", "dtype"), KERNELS)
every_cell = pytest.mark.parametrize(("spec", "backend", "kernel", "dtype", "sample"), CELLS)


@pytest.fixture(autouse=True)
def _poisoned_outputs() -> Iterator[None]:
    """Have torch fill fresh memory with NaN: an element that a kernel doesn't write shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def where(backend: Any, kernel: Kernel, device: torch.device, request: pytest.FixtureRequest) -> torch.device:
    """The device that this kernel takes here, or a skip that says why it can't run."""
    verdict = REGISTRY.probe(backend, kernel)
    if not verdict:
        label = backend.label(kernel)
        if label in request.config.getoption("--require") or backend.name in request.config.getoption(
            "--require"
        ):
            pytest.fail(f"--require={label}: {verdict.reason}")
        pytest.skip(f"{label} can't run here: {verdict.reason}")
    if device.type == "cuda" and backend.name == "numba" and not kernel.variant:
        return torch.device("cpu")  # the CPU kernels are tested on a machine with a CUDA device too
    if device.type == "cuda" and backend.name == "jax" and not importlib.import_module("nxcore_jax").cuda():
        return torch.device("cpu")  # so is JAX where its plugin for CUDA is missing
    return device


@functools.cache
def _planned(kernel: Kernel, problem: Problem) -> Any:
    """Plan once for all tests: some plans are compiled."""
    return kernel.plan(problem)


def _call(spec: OpSpec, kernel: Kernel, args: tuple[Any, ...]) -> Any:
    problem = Problem.of(spec, args)
    verdict = kernel.accepts(problem)
    if not verdict:
        assert verdict.reason, "a refusal has a reason"
        pytest.skip(f"declined: {verdict.reason}")
    return _planned(kernel, problem)


@every_cell
def test_agrees_with_float64(
    spec: OpSpec, backend: Any, kernel: Kernel, dtype: torch.dtype, sample: Sample, where: torch.device
) -> None:
    args = sample.build(spec, where, dtype)
    call = _call(spec, kernel, args)
    if backend.name == "jax" and where.type == "cpu" and sample.name == "denormal" and spec.name == "sum":
        pytest.skip("XLA's threads take denormal numbers for zero on the CPU; a sum has as many as terms")
    found = agreement(call, spec, args)
    assert found.ok, found.reason


@every_kernel
def test_takes_at_least_one_smoke_sample(
    spec: OpSpec, backend: Any, kernel: Kernel, dtype: torch.dtype, where: torch.device
) -> None:
    """Or it could never be verified, so never serve a call."""
    problems = [Problem.of(spec, s.build(spec, where, dtype)) for s in spec.tagged("smoke")]
    if all(p.view for p in problems):
        pytest.skip(f"{spec.name} returns views: there is nothing to run")
    assert any(kernel.accepts(p) for p in problems), [kernel.accepts(p).reason for p in problems]


@every_kernel
def test_repeats_itself_bit_for_bit(
    spec: OpSpec, backend: Any, kernel: Kernel, dtype: torch.dtype, where: torch.device
) -> None:
    if not kernel.deterministic:
        assert backend.on_request, "a kernel that takes part without being asked for repeats itself"
        pytest.skip(f"{backend.label(kernel)} doesn't claim to be deterministic")
    for sample in spec.tagged("smoke"):
        args = sample.build(spec, where, dtype)
        problem = Problem.of(spec, args)
        if not kernel.accepts(problem):
            continue
        call = _planned(kernel, problem)
        first = list(leaves(call(*args)))
        repeats = 1 if REGISTRY.probe(backend, kernel).simulated else 10
        for _ in range(repeats):
            for a, b in zip(first, leaves(call(*args)), strict=True):
                assert torch.equal(a.nan_to_num(), b.nan_to_num())
                assert torch.equal(a.isnan(), b.isnan())


@every_kernel
def test_ignores_what_lies_past_the_end(
    spec: OpSpec, backend: Any, kernel: Kernel, dtype: torch.dtype, where: torch.device
) -> None:
    """The same numbers with NaN around them in memory: a missing mask shows."""
    sample = spec.tagged("smoke")[0]
    args = sample.build(spec, where, dtype)
    walled = tuple(_walled(a) for a in args)
    found = Truth.of(spec, args).judge(_call(spec, kernel, walled)(*walled))
    assert found.ok, found.reason


def _walled(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_walled(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    assert value.is_contiguous()
    wall = value.new_full((4096,), torch.nan if value.is_floating_point() else 85)
    return torch.cat([wall, value.flatten(), wall])[4096 : 4096 + value.numel()].view(value.shape)


@every_kernel
def test_plans_for_requires_grad_inputs(
    spec: OpSpec, backend: Any, kernel: Kernel, dtype: torch.dtype, where: torch.device
) -> None:
    """A kernel is called with tensors that need gradients, under no_grad."""
    sample = spec.tagged("smoke")[0]
    args = sample.build(spec, where, dtype)
    truth, call = Truth.of(spec, args), _call(spec, kernel, args)
    for tensor in leaves(args):
        tensor.requires_grad_(tensor.is_floating_point())
    with torch.no_grad():
        found = truth.judge(call(*args))
    assert found.ok, found.reason
