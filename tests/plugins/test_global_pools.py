"""Whatever tile the kernels of global_max_pool2d are given is right: those of large images too."""

import importlib

import pytest
import torch
from nxcore_cuda.global_max_pool2d import Spread
from nxcore_cuda.machine import toolkit
from nxcore_cuda.sum import Tile
from nxcore_triton import tile as triton_tile

import nxcore
from nxcore.spec.problem import Problem
from nxcore.trust.truth import agreement
from tests.table import for_each

SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
LAYOUTS = {"rows": torch.contiguous_format, "channels": torch.channels_last}
SIMULATED = {"cuda": toolkit.EMULATED, "triton": triton_tile.INTERPRETED}

TILES = {
    ("cuda", "rows"): [Tile(32, threads=128, unroll=2), Tile(512, threads=512, unroll=4, resident=2)],
    ("cuda", "channels"): [Tile(1, threads=64, unroll=4), Tile(32, threads=128, unroll=4)],
    ("triton", "rows"): [(1, 64), (4, 16)],
    ("triton", "channels"): [(16, 8), (8, 64)],
}
BACK = {
    ("cuda", "rows"): [Spread(4), Spread(1)],
    ("cuda", "channels"): [Spread(4, 1), Spread(2, 5)],
    ("triton", "rows"): [(1, 32), (4, 128)],
    ("triton", "channels"): [(16, 8), (8, 32)],
}


def image(layout, dtype=torch.float32):
    """Return an image of few values, so that most maxima have equals, and some NaN."""
    torch.manual_seed(0)
    x = (torch.randn(2, 20, 13, 11) * 2).round()
    x[0, 3, 5, 2:7] = x[1, 7, 12, 10] = torch.nan
    x[1, 4] = -torch.inf
    return x.to(dtype).contiguous(memory_format=LAYOUTS[layout])


def hold(backend, op, tiles, *args):
    if not SIMULATED[backend]:
        pytest.skip("asks for tiles of tensors on the CPU")
    bound = SPECS[op].bind(*args)
    kernels = importlib.import_module(f"nxcore_{backend}").KERNELS
    kernel, problem = next(k for k in kernels if k.op == op), Problem.of(SPECS[op], bound)
    assert len(set(kernel.sweep(problem))) > 1
    for tile in tiles:
        verdict = agreement(kernel.plan(problem, tile), SPECS[op], bound)
        assert verdict.ok, (tile, verdict.reason)


@for_each("op", ["global_max_pool2d", "global_max_pool2d_with_offsets"])
@pytest.mark.parametrize(("backend", "layout"), TILES)
def test_largest(backend, layout, op):
    hold(backend, op, TILES[backend, layout], image(layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_largest_in_blocks_that_are_larger_for_want_of_outputs(layout):
    x = image(layout, torch.bfloat16).repeat(1, 1, 17, 9)[:1]
    hold("cuda", "global_max_pool2d_with_offsets", [None], x[:, :2] if layout == "rows" else x)


@pytest.mark.parametrize(("backend", "layout"), BACK)
def test_its_gradient(backend, layout):
    offsets = SPECS["global_max_pool2d_with_offsets"].reference(image(layout))[1]
    args = torch.randn(2, 20, 1, 1), offsets, (2, 20, 13, 11), LAYOUTS[layout]
    hold(backend, "global_max_pool2d_backward", BACK[backend, layout], *args)
