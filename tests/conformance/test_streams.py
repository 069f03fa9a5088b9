"""What only a CUDA device can show and no rule of the kit asks: capture of what is new, and sheer size."""

from __future__ import annotations

import pytest
import torch

import nxcore
from nxcore.discovery import discover

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


def test_nothing_is_measured_under_capture() -> None:
    """A new problem met while a graph is captured is served by torch, and is not remembered."""
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
@pytest.mark.parametrize("backend", [b for b in discover(strict=True).backends if b != "torch"])
def test_an_operator_runs_on_a_device_that_is_not_the_current_one(backend: str) -> None:
    x = torch.randn(6, 70, device=torch.device("cuda", 1))
    torch.testing.assert_close(nxcore.Session().op("add", backend=backend)(x, x), x + x)


@pytest.mark.parametrize(
    "backend", [b for b in discover(strict=True).backends if b not in ("torch", "inductor")]
)
def test_more_elements_than_two_to_the_31(backend: str) -> None:
    n = 2**31 + 77
    x = torch.ones(n, device=CUDA, dtype=torch.float16)
    out = nxcore.op("add", backend=backend)(x, x)
    assert float(out[-1]) == 2.0
    assert bool((out[-1000:] == 2).all())
    assert bool((out[:1000] == 2).all())
