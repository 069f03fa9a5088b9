"""Time to verify a compiled kernel: at most 50 ms for each dtype on a GPU, 200 ms on a CPU.

It includes the float64 results of the samples, though all kernels of an operator share them in a process. The
time in a later process, which finds the verdict on disk, is printed too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nxcore.registry.discovery import discover
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem
from nxcore.spec.spec import OpSpec
from nxcore.store.files import Store
from nxcore.trust import samples
from nxcore.trust.gate import Gate

REGISTRY = discover()
BUDGET_MS = {"cuda": 50.0, "cpu": 200.0}
ROUNDS = 10
KERNELS = [
    pytest.param(REGISTRY.spec(k.op), b, k, dtype, id=f"{k.op}-{b.label(k)}-{str(dtype)[6:]}")
    for b in REGISTRY.backends.values()
    if b.name != "torch" and not b.on_request  # whose compiling is the cost
    for k in b.kernels
    if (verdict := REGISTRY.probe(b, k)) and not verdict.simulated
    for dtype in k.dtypes
]


def _least_ms(call: Callable[[], Any], enough: float) -> float:
    """Return the minimum of some rounds, or of one if it is low enough, because noise only adds time."""
    least = float("inf")
    for _ in range(ROUNDS):
        if least <= enough:
            break
        started = time.perf_counter_ns()
        call()
        least = min(least, (time.perf_counter_ns() - started) * 1e-6)
    return least


@pytest.mark.parametrize(("spec", "backend", "kernel", "dtype"), KERNELS)
def test_a_verdict_stays_within_its_budget(
    spec: OpSpec, backend: Backend, kernel: Kernel, dtype: torch.dtype, tmp_path: Path, record_property: Any
) -> None:
    problem = _first_taken(spec, kernel, dtype)
    Gate(REGISTRY, Store()).verify(backend, kernel, problem)  # compiles

    def ask() -> None:
        samples.built.cache_clear()
        assert Gate(REGISTRY, Store()).verify(backend, kernel, problem).refusal is None

    budget = BUDGET_MS[problem.device.type]
    found_ms = _least_ms(ask, budget)
    Gate(REGISTRY, Store(tmp_path)).verify(backend, kernel, problem)
    known_ms = _least_ms(lambda: Gate(REGISTRY, Store(tmp_path)).verify(backend, kernel, problem), budget)
    record_property("verdict_ms", found_ms)
    record_property("known_ms", known_ms)
    print(f"\n{found_ms:.1f} ms of {budget:.0f}; {known_ms:.2f} ms with the verdict on disk")
    assert found_ms <= budget


def _first_taken(spec: OpSpec, kernel: Kernel, dtype: torch.dtype) -> Problem:
    """Return the first smoke sample's problem that a kernel takes, on CUDA if it runs there."""
    places = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)
    for device in places:
        for sample in spec.tagged("smoke"):
            problem = Problem.of(spec, sample.build(spec, device, dtype))
            if kernel.takes(problem):
                return problem
    raise AssertionError("a kernel takes at least one smoke sample")
