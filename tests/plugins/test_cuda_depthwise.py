"""Depthwise convolution in CUDA C++: what the samples of its specs are too small or too ordinary to show."""

import pytest
import torch

from nxcore.spec.problem import Problem
from nxcore.trust.memory import Walls
from nxcore.trust.truth import agreement

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import depthwise

from tests.plugins.cuda_tiles import DEVICE, SPECS, judge, planner
from tests.table import for_each

LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


def forward(shape, k, *window, layout="nchw", dtype=torch.float32):
    """Return arguments of the forward pass."""
    x = torch.randn(shape).to(DEVICE, dtype).contiguous(memory_format=LAYOUTS[layout])
    return x, torch.randn(shape[1], 1, k, k).to(DEVICE, dtype), *window


def backward(shape, k, *window, layout="nchw", dtype=torch.float32, mask=(True, True)):
    """Return arguments of the gradients."""
    x, weight, *_ = forward(shape, k, layout=layout, dtype=dtype)
    out = SPECS["depthwise_conv2d"].reference(x, weight, *window)
    grad = torch.randn(out.shape).to(DEVICE, dtype).contiguous(memory_format=LAYOUTS[layout])
    return grad, x, weight, *window, mask


class TestManyImages:
    """More than a block takes, so that the filter's gradient is the sum of several blocks' sums."""

    @for_each("layout", LAYOUTS)
    @for_each(
        ("k", "window"), [(3, (1, 1, 1)), (5, (1, 4, 2)), (3, (2, 1, 1)), (7, (1, 3, 1)), (1, (1, 0, 1))]
    )
    def test_gradients(self, layout, k, window):
        judge("depthwise_conv2d_backward", backward((70, 3, 12, 16), k, *window, layout=layout))

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("mask", [(True, False), (False, True)])
    def test_one_gradient(self, layout, mask):
        args = backward((70, 3, 12, 16), 5, 1, 2, 1, layout=layout, mask=mask)
        judge("depthwise_conv2d_backward", args)

    def test_more_channels_than_a_block_takes(self):
        args = backward((2, 130, 7, 6), 3, 1, 1, 1, layout="channels_last", dtype=torch.bfloat16)
        judge("depthwise_conv2d_backward", args)


class TestBesideTheImage:
    """There are zeros, and a zero times an infinity is no part of any sum."""

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("stride", [1, 2])
    def test_infinite_gradient(self, layout, stride):
        """The taps that lie beside the image at the first output: torch's CPU kernels do count them."""
        grad, x, weight, *rest = backward((9, 2, 12, 16), 3, stride, 1, 1, layout=layout)
        grad[4, 1, 0, 0] = float("inf")
        args = (grad, x, weight, *rest)
        op = "depthwise_conv2d_backward"
        _, got = planner(op).plan(Problem.of(SPECS[op], args))(*args)
        assert got[0].isfinite().all()
        beside = torch.ones(3, 3, dtype=torch.bool, device=DEVICE)
        beside[1:, 1:] = False
        assert torch.equal(got[1, 0].isfinite(), beside)
        grad[4, 1, 0, 0] = 0.0
        _, want = SPECS[op].reference(*args)
        torch.testing.assert_close(got[1, 0][beside], want[1, 0][beside], rtol=1e-4, atol=1e-3)

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("window", [(1, 1, 1), (2, 1, 1)])
    def test_infinite_image(self, layout, window):
        grad, x, *rest = backward((9, 2, 12, 16), 3, *window, layout=layout)
        x[4, 1, 0, 0] = float("inf")
        judge("depthwise_conv2d_backward", (grad, x, *rest))


class TestOffsets:
    """Memory that is never touched costs nothing."""

    @pytest.mark.parametrize(
        ("shape", "strides"),
        [
            ((2, 2, 4, 8), (2**31 - 64, 32, 8, 1)),
            ((1, 2, 2, 8), (2**31, 8, 2**31 - 64, 1)),
            ((2, 2, 4, 8), (2**31 - 64, 1, 16, 2)),
        ],
        ids=["image", "row", "channels_last"],
    )
    def test_past_32_bits(self, shape, strides):
        reach = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        x = torch.empty(reach, dtype=torch.float16, device=DEVICE).as_strided(shape, strides)
        x.copy_(torch.randn(shape))
        judge("depthwise_conv2d", (x, torch.randn(2, 1, 3, 3).to(x), 1, 1, 1))


class TestTiles:
    @for_each("layout", LAYOUTS)
    @for_each("op", ["depthwise_conv2d", "depthwise_conv2d_backward"])
    @for_each(("k", "dtype"), [(3, torch.float32), (5, torch.bfloat16), (7, torch.float32)])
    def test_the_chosen_one_comes_first_of_a_few(self, op, layout, k, dtype):
        make = forward if op == "depthwise_conv2d" else backward
        problem = Problem.of(SPECS[op], make((4, 8, 14, 16), k, 1, k // 2, 1, layout=layout, dtype=dtype))
        tiles = list(planner(op).sweep(problem))
        assert tiles[0] == planner(op).choose(problem)
        assert 4 <= len(tiles) == len(set(tiles)) <= 12

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_every_one_agrees(self, layout):
        args = backward((4, 8, 13, 16), 3, 1, 1, 1, layout=layout)
        problem = Problem.of(SPECS["depthwise_conv2d_backward"], args)
        for tile in planner("depthwise_conv2d_backward").sweep(problem):
            judge("depthwise_conv2d_backward", args, tile)


class TestHost:
    def test_divisor(self):
        """As ``quotient`` in depthwise_rows.cuh computes it."""
        for n in (1, 2, 3, 7, 14, 49, 56, 64, 1000, 12321, 2**16, 2**31 - 1):
            multiplier, shift = depthwise.divisor(n)
            assert 0 <= multiplier < 2**32
            for m in {0, 1, n - 1, n, min(7 * n + 3, 2**31 - 1), 2**30 + 5, 2**31 - 1}:
                assert (((m * multiplier) >> 32) + m) % 2**32 >> shift == m // n, (m, n)

    @pytest.mark.parametrize(("chunks", "channels"), [(1, 1), (3, 1000), (784, 64), (25, 16), (100_000, 1)])
    def test_share(self, chunks, channels):
        assert 1 <= depthwise.share(chunks, channels, 4) <= chunks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("moved", [0, 1])
def test_rows_of_whole_vectors_at_an_odd_address(moved, dtype):
    """The launch for any address takes strips of other columns, and was given the count of the vectors'."""
    args = list(forward((2, 4, 9, 16), 3, 1, 1, 1, dtype=dtype))
    call = planner("depthwise_conv2d").plan(Problem.of(SPECS["depthwise_conv2d"], tuple(args)))
    args[moved] = Walls(args[moved], 1, 3.0).args
    found = agreement(call, SPECS["depthwise_conv2d"], tuple(args))
    assert found.ok, found.reason
