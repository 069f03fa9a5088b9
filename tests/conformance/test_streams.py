"""What only a CUDA device can show: streams, graphs, a second device, large offsets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nxcore.discovery import discover
from nxcore.kernel import Kernel
from nxcore.problem import Problem
from nxcore.spec import OpSpec
from nxcore.verify import Truth, leaves

pytestmark = pytest.mark.gpu

REGISTRY = discover(strict=True)
CASES = [
    pytest.param(REGISTRY.spec(kernel.op), backend, kernel, id=f"{kernel.op}-{backend.label(kernel)}")
    for backend in REGISTRY.backends.values()
    for kernel in backend.kernels
    if backend.name != "torch" and (backend.name != "numba" or kernel.variant)
]
every_kernel = pytest.mark.parametrize(("spec", "backend", "kernel"), CASES)
CUDA = torch.device("cuda")


def _prepared(spec: OpSpec, kernel: Kernel, index: int = 0) -> tuple[tuple[Any, ...], Any]:
    args = spec.tagged("smoke")[index].build(spec, CUDA, torch.float32)
    problem = Problem.of(spec, args)
    verdict = kernel.accepts(problem)
    if problem.view or "JAX's plugin" in verdict.reason:
        pytest.skip(verdict.reason)
    assert verdict, verdict.reason
    return args, kernel.plan(problem)


@every_kernel
def test_runs_on_the_current_stream(spec: OpSpec, backend: Any, kernel: Kernel) -> None:
    """Inputs that a side stream is still writing: work on any other stream would read them too early."""
    args, call = _prepared(spec, kernel)
    truth = Truth.of(spec, args)
    call(*args)
    torch.cuda.synchronize()
    late = tuple(_like(a) for a in args)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for new, old in zip(leaves(late), leaves(args), strict=True):
            new.copy_(old)
        result = call(*late)
        copies = [r.clone() for r in leaves(result)]
    torch.cuda.synchronize()
    found = truth.judge(tuple(copies))
    assert found.ok, found.reason


def _like(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_like(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    return torch.full_like(value, torch.nan if value.is_floating_point() else 85)


@every_kernel
def test_replays_in_a_graph(spec: OpSpec, backend: Any, kernel: Kernel) -> None:
    """Capture, poison the outputs, change the inputs, replay, compare."""
    if not kernel.graph_safe:
        pytest.skip(f"{backend.label(kernel)} doesn't claim to be graph_safe")
    args, call = _prepared(spec, kernel)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(*args)
    inputs = {t.data_ptr() for t in leaves(args)}
    for r in leaves(result):
        if r.data_ptr() not in inputs:
            r.fill_(torch.nan if r.is_floating_point() else 85)
    for tensor in leaves(args):
        if tensor.is_floating_point():
            tensor.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    found = Truth.of(spec, args).judge(result)
    assert found.ok, found.reason


def test_nothing_is_measured_under_capture() -> None:
    """A new problem met while a graph is captured is served by torch, and is not remembered."""
    import nxcore

    x, y = torch.randn(12_345, device=CUDA), torch.randn(12_345, device=CUDA)
    add = nxcore.Session().op("add")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = add(x, y)
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, x + y)
    assert not add.plans


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@every_kernel
def test_runs_on_a_device_that_is_not_the_current_one(spec: OpSpec, backend: Any, kernel: Kernel) -> None:
    import nxcore

    args = spec.tagged("smoke")[0].build(spec, torch.device("cuda", 1), torch.float32)
    operator = nxcore.Session().op(spec.name, backend=backend.name)
    found = Truth.of(spec, args).judge(operator.miss(*args))
    assert found.ok, found.reason


@pytest.mark.parametrize("backend", [b for b in REGISTRY.backends if b not in ("torch", "inductor")])
def test_offsets_past_two_to_the_31(backend: str) -> None:
    import nxcore

    n = 2**31 + 77
    x = torch.ones(n, device=CUDA, dtype=torch.float16)
    add = nxcore.op("add", backend=backend)
    out = add(x, x)
    assert float(out[-1]) == 2.0
    assert bool((out[-1000:] == 2).all())
    assert bool((out[:1000] == 2).all())
