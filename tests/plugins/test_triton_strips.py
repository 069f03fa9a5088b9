"""Whatever tile a sweep of the windows' kernels may choose is right, on many programs of few lanes."""

import importlib

import pytest
import torch

import nxcore.ops
from nxcore.spec.problem import Problem
from nxcore.trust.truth import Truth, agreement
from tests.table import for_each

nxcore_triton = pytest.importorskip("nxcore_triton")

pytestmark = pytest.mark.skipif(
    not nxcore_triton.tile.INTERPRETED, reason="TRITON_INTERPRET=1 was not set before triton was imported"
)
SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
KERNELS = {kernel.op: kernel for kernel in nxcore_triton.KERNELS}


@pytest.fixture(autouse=True)
def _many_programs(monkeypatch):
    strips = importlib.import_module("nxcore_triton.strips")
    sums = importlib.import_module("nxcore_triton.depthwise_conv2d_backward")
    for module in (strips, sums):
        monkeypatch.setattr(module, "lanes", lambda *_: 16)


@pytest.mark.slow
@for_each("layout", ["contiguous", "channels_last"])
@for_each(
    "op", sorted(op for op in KERNELS if op.startswith(("avg_pool2d", "depthwise_conv2d", "max_pool2d")))
)
def test_every_eighth_tile(op, layout):
    spec = SPECS[op]
    name = {"contiguous": "strided", "channels_last": "channels_last"}[layout]
    names = {name, "reduction_cell"} if name == "strided" else {name}
    sample = next(s for s in spec.samples if s.name in names)
    args = sample.build(spec, "cpu", torch.float32)
    asked = Problem.of(spec, args)
    kernel = KERNELS[op]
    truth = Truth.of(spec, args)
    for tile in list(kernel.sweep(asked))[::8]:
        found = agreement(kernel.plan(asked, tile), spec, args, truth)
        assert found.ok, (tile, found.reason)


def test_windows_too_large_to_unroll_agree_with_strips():
    x, w = torch.randn(2, 3, 9, 8), torch.randn(3, 1, 3, 3)
    grad = torch.randn(2, 3, 5, 4)
    strips = importlib.import_module("nxcore_triton.strips")
    both = (strips.ANY, strips.ANY)
    for op, args, tile in (
        ("depthwise_conv2d", (x, w, 2, 1), strips.ANY),
        ("depthwise_conv2d_backward", (grad, x, w, 2, 1), both),
        ("avg_pool2d", (x, 3, 2, 1, True, False), strips.ANY),
        ("avg_pool2d_backward", (grad, x.shape, 3, 2, 1, False, False), strips.ANY),
        ("max_pool2d", (x, 3, 2, 1, 1, False, True), strips.ANY),
    ):
        spec = SPECS[op]
        bound = spec.bind(*args)
        call = KERNELS[op].plan(Problem.of(spec, bound), tile)
        found = agreement(call, spec, bound)
        assert found.ok, (op, found.reason)
