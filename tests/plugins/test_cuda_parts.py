"""Outputs of separable convolutions on parts of square planes in CUDA C++: tiles, and calls with them."""

import math

import pytest
import torch

from nxcore.spec.problem import Problem

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import parts_forward, planes, sep_conv2d
from nxcore_cuda.parts_forward import TILES, Part

from tests.plugins.cuda_tiles import begun_elsewhere
from tests.plugins.test_cuda_planes_forward import BLOCK, DEVICE, SINGLE, SPECS, judge
from tests.table import for_each

WINDOWS = ((3, 1, 1), (5, 4, 2), (5, 2, 1), (3, 2, 2))
"""Size, padding and dilation."""


def arguments(images, channels, side, stride, size, *window, relu=True):
    """Return a call of one convolution."""
    x = torch.randn(images, channels, side, side, device=DEVICE)
    filters = torch.randn(channels, 1, size, size, device=DEVICE)
    return x, filters, torch.randn(channels, channels, 1, 1, device=DEVICE), stride, *window, relu


def tiles_of(args):
    """Return the tiles of parts for a call; none where its kernels don't take it."""
    found = sep_conv2d.sweep(Problem.of(SPECS[SINGLE], args))
    return [tile for tile in found if isinstance(tile, Part)]


@for_each("plane", TILES, ids=str)
@for_each("window", WINDOWS, ids=str)
def test_every_tile_agrees_and_leaves_moments(plane, window):
    args = arguments(2, *plane, *window)
    tiles = tiles_of(args)
    assert tiles == list(TILES[plane])
    for tile in tiles:
        judge(BLOCK, (*args, None, None, 1e-5), tile)


@pytest.mark.parametrize("plane", TILES, ids=str)
def test_a_block_computes_several_parts(monkeypatch, plane):
    """Three blocks, of which the last has fewer."""
    monkeypatch.setattr(parts_forward, "shared_out", lambda work, count, resident: -(-work // 3))
    judge(BLOCK, (*arguments(4, *plane, *WINDOWS[0]), None, None, 1e-5))


def test_moments_far_from_0():
    x, *rest = arguments(4, 144, 8, 1, *WINDOWS[0])
    judge(BLOCK, (x + 1000.0, *rest, None, None, 1e-5))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
def test_pixels_that_are_not_finite_count_where_a_window_sees_them(value):
    args = arguments(1, 72, 16, 1, *WINDOWS[0])
    args[0][0, 3, 0, 0] = args[0][0, 5, 15, 7] = args[0][0, 31, 8, 15] = value
    judge(SINGLE, args, tiles_of(args)[0])


@pytest.mark.parametrize("plane", [(72, 16, 1), (144, 16, 2)], ids=str)
def test_tensors_that_begin_anywhere(plane):
    args = begun_elsewhere(arguments(1, *plane, *WINDOWS[0]), 3)
    problem = Problem.of(SPECS[SINGLE], args)
    shape = problem.outputs.shape
    out = torch.empty(math.prod(shape) + 1, device=DEVICE)[1:].view(shape)
    launch, _ = sep_conv2d.launched(problem, tiles_of(args)[0])
    launch(*args[:3], out, None)
    want = SPECS[SINGLE].reference(*(t.double() if isinstance(t, torch.Tensor) else t for t in args))
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


def test_only_calls_that_the_kernels_know_have_them():
    x, *rest = usual = arguments(1, 36, 32, 1, *WINDOWS[0])
    assert isinstance(sep_conv2d.choose(Problem.of(SPECS[SINGLE], usual)), Part)
    odd = [
        arguments(1, 36, 31, 1, *WINDOWS[0]),
        arguments(1, 36, 32, 1, *WINDOWS[0], relu=False),
        arguments(1, 36, 32, 2, *WINDOWS[0]),
        arguments(1, 36, 32, 1, 7, 3, 1),
        (x.to(memory_format=torch.channels_last), *rest),
        tuple(t.half() if isinstance(t, torch.Tensor) else t for t in usual),
    ]
    assert [tiles_of(args) for args in odd] == [[]] * len(odd)


@for_each("count", [1, 3, 4, 14, 32])
@for_each("work", [1, 96, 384, 3000])
def test_waves_of_blocks_take_the_least(work, count):
    """What a block takes to begin counts too."""

    def cost(blocks):
        return -(-blocks * count // planes.FILL) * (-(-work // blocks) + planes.BEGIN)

    each = planes.shared_out(work, count)
    assert cost(-(-work // each)) <= min(cost(blocks) for blocks in range(1, min(work, 528) + 1)) + 1e-9
