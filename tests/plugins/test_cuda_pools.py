"""The CUDA pools' tiles, and what few samples meet; whether a plan is right, the conformance suite asks."""

import importlib
from dataclasses import replace
from itertools import islice

import pytest
import torch

import nxcore.ops
from nxcore.plugin import Problem, Window
from nxcore.trust.truth import agreement

pytest.importorskip("nxcore_cuda")

import nxcore_cuda
from nxcore_cuda.machine import toolkit

from tests.table import for_each

pytestmark = pytest.mark.skipif(not toolkit.EMULATED, reason="asks for tiles of tensors on the CPU")

SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
OPS = ("avg_pool2d", "avg_pool2d_backward", "max_pool2d_with_offsets", "max_pool2d_backward")
LAYOUTS = {"rows": torch.contiguous_format, "channels": torch.channels_last}
WINDOWS = {"k3": (3, 1, 1), "k3_apart": (3, 2, 1), "k7": (7, 1, 3)}
UNUSUAL = (0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, torch.inf, -torch.inf, torch.nan)
TRIED = 5


def problem(op, x, window, *rest):
    """Return an operator's arguments on ``x``, or on gradients of its outputs, and the problem."""
    outputs = (*x.shape[:2], *Window.of_pool(tuple(x.shape), *window).outputs)
    inside = x.stride(1) == 1
    form = LAYOUTS["channels" if inside else "rows"]
    grad = torch.randn(outputs).to(x.dtype).contiguous(memory_format=form)
    if op == "avg_pool2d_backward":
        given = (grad, tuple(x.shape), *window, False, False, None, form)
    elif op == "max_pool2d_backward":
        taps = SPECS["max_pool2d_with_offsets"].reference(x, *window)[1]
        given = (grad, taps, tuple(x.shape), *window)
    else:
        given = (x, *window, *rest)
    args = SPECS[op].bind(*given)
    return args, Problem.of(SPECS[op], args)


def module(op):
    return next(kernel for kernel in nxcore_cuda.KERNELS if kernel.op == op)


def image(layout, dtype, size=(1, 16, 15, 16)):
    torch.manual_seed(0)
    return torch.randn(size).to(dtype).contiguous(memory_format=LAYOUTS[layout])


@for_each("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@for_each("layout", LAYOUTS)
@for_each("window", WINDOWS)
@for_each("op", OPS)
def test_tiles_agree(op, window, layout, dtype):
    args, found = problem(op, image(layout, dtype), WINDOWS[window])
    tiles = list(module(op).sweep(found))
    assert 4 <= len(tiles) <= 12
    assert len(set(tiles)) == len(tiles)
    # A tile's share of the image is what its code is made of; the launch bounds are the GPU's business.
    kinds = dict.fromkeys(replace(tile, threads=128, blocks=0) for tile in tiles if tile.rows < 14)
    for tile in islice(kinds, TRIED):
        verdict = agreement(module(op).plan(found, tile), SPECS[op], args)
        assert verdict.ok, (tile, verdict.reason)


@for_each("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@for_each("layout", LAYOUTS)
@for_each("values", [UNUSUAL[:2], UNUSUAL[:4], UNUSUAL[:6], UNUSUAL[6:8], UNUSUAL], ids=str)
@for_each("op", ["max_pool2d_with_offsets", "max_pool2d"])
def test_places_of_unusual_numbers(op, values, layout, dtype):
    """Zeros of both signs are equal, the last NaN counts, and padding is less than minus infinity."""
    x = image(layout, dtype, (2, 8, 10, 8))
    x.copy_(torch.tensor(values).to(dtype)[torch.randint(len(values), x.shape)])
    rest = (1, False, True) if op == "max_pool2d" else ()
    args, found = problem(op, x, (3, 1, 1), *rest)
    out, places = module(op).plan(found)(*args)
    wanted, those = SPECS[op].reference(*args)
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, those)


class TestChoice:
    def choose(self, op, x, window):
        name, _, planner = module(op).target.partition(":")
        choose = "choose_backward" if planner == "plan_backward" else "choose"
        return getattr(importlib.import_module(name), choose)(problem(op, x, window)[1])

    @for_each("op", OPS)
    @for_each(("dtype", "count"), [(torch.float32, 4), (torch.bfloat16, 8)], ids=str)
    def test_rows_are_loaded_16_bytes_at_once(self, op, dtype, count):
        tile = self.choose(op, image("rows", dtype), (3, 1, 1))
        assert (tile.kind, tile.vector, tile.columns, tile.channels) == ("strips", True, count, 1)

    @for_each("op", OPS)
    @for_each(("dtype", "count"), [(torch.float32, 4), (torch.bfloat16, 8)], ids=str)
    def test_channels_are_loaded_16_bytes_at_once(self, op, dtype, count):
        tile = self.choose(op, image("channels", dtype), (3, 1, 1))
        assert (tile.kind, tile.vector, tile.channels) == ("strips", False, count)

    @pytest.mark.parametrize("op", OPS)
    def test_rows_that_are_no_vectors(self, op):
        tile = self.choose(op, image("rows", torch.float32, (1, 2, 9, 13)), (3, 1, 1))
        assert (tile.kind, tile.aligned) == ("strips", False)

    @for_each("op", OPS)
    @for_each("window", [(4, 2, 1), (3, 1, 0), ((3, 5), 1, 1)], ids=str)
    def test_other_windows(self, op, window):
        assert self.choose(op, image("rows", torch.float32), window).kind == "window"

    def test_large_windows_gradients_are_gathered_in_rounds(self):
        assert self.choose("max_pool2d_backward", image("rows", torch.float32), (7, 1, 3)).kind == "rounds"

    @pytest.mark.parametrize("op", ["avg_pool2d", "max_pool2d_with_offsets"])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_data_off_16_bytes(self, op, layout):
        """What aligned strides promise, the data's address may break: that is seen at the launch."""
        args, found = problem(op, image(layout, torch.float32), (3, 1, 1))
        x = args[0]
        moved = torch.empty(x.numel() + 1)[1:].as_strided(x.shape, x.stride()).copy_(x)
        call = module(op).plan(found)
        for out, wanted in zip(_all(call(moved, *args[1:])), _all(call(*args)), strict=True):
            torch.testing.assert_close(out, wanted)  # means are added up in another order


def _all(results):
    return results if isinstance(results, tuple) else (results,)
