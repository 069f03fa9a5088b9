"""Separable convolution in CUDA C++: what the samples of its specs are too small or too ordinary to show."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nxcore.ops
from nxcore.choose.learn import watch
from nxcore.graphs import together
from nxcore.graphs.late import late
from nxcore.nn import sequential
from nxcore.spec.problem import Problem
from tests.plugins.cuda_tiles import DEVICE, SPECS, begun_elsewhere, judge, planner, tiles_of

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import planes, sep_conv2d_backward, separable
from nxcore_cuda.planes import Planes
from nxcore_cuda.separable import Layer, Tile

from tests.stand_ins import stand_in
from tests.table import for_each

together_has = stand_in(together)

OPS = ("sep_conv2d", "sep_conv2d_backward")


def arguments(op, shape, made, k, *window, relu=True):
    """Return arguments of either operator."""
    x, dw, pw = (
        torch.randn(*size, device=DEVICE) for size in (shape, (shape[1], 1, k, k), (made, shape[1], 1, 1))
    )
    if op == "sep_conv2d":
        return x, dw, pw, *window, relu
    grad = torch.randn_like(SPECS["sep_conv2d"].reference(x, dw, pw, *window))
    return grad, x, dw, pw, *window, relu, (True, True, True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("tile", [Tile(3, 6), Tile(7, 4, threads=128), Tile(2, 8, threads=512)], ids=str)
def test_bands_and_chunks_that_divide_nothing(op, tile):
    judge(op, arguments(op, (2, 10, 9, 11), 7, 3, 1, 1, 1), tile)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("window", [(2, 2, 1), (2, 4, 2), (1, 4, 2)], ids=str)
def test_windows(op, window):
    judge(op, arguments(op, (2, 4, 13, 16), 4, 5, *window), Tile(2, 4))


@pytest.mark.parametrize("op", OPS)
def test_outputs_that_come_in_parts(op):
    """Where there is memory for a few of the output's channels at a time."""
    args = arguments(op, (1, 6, 4, 8), 22, 3, 1, 1, 1)
    for tile in (Tile(2, 6, memory=1), Tile(4, 2, memory=1)):
        problem = Problem.of(SPECS[op], args)
        layer = Layer.of(problem, problem["grad"] if op == OPS[1] else problem.outputs)
        floats = (separable.backward if op == OPS[1] else separable.forward)(layer, tile)
        assert floats.tile < 22
        judge(op, args, tile)


def test_blocks_that_make_several_bands(monkeypatch):
    monkeypatch.setattr(sep_conv2d_backward, "MOST_BLOCKS", 3)
    judge(OPS[1], arguments(OPS[1], (5, 4, 6, 8), 4, 3, 1, 1, 1), Tile(3, 2))


@pytest.mark.parametrize("op", OPS)
def test_the_chosen_tile_comes_first_of_a_few(op):
    module = planner(op)
    problem = Problem.of(SPECS[op], arguments(op, (64, 16, 32, 32), 16, 3, 1, 1, 1))
    tiles = list(module.sweep(problem))
    assert tiles[0] == module.choose(problem)
    assert 4 <= len(tiles) == len(set(tiles)) <= 20


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(4, 128, 32, 32), (4, 128, 8, 8), (1, 64, 16, 16)], ids=str)
def test_shapes_of_a_search_fit(op, shape):
    """With what every device has too."""
    for k, *window in ((3, 1, 2, 2), (5, 2, 4, 2), (7, 1, 3, 1)):
        problem = Problem.of(SPECS[op], arguments(op, shape, shape[1], k, *window))
        assert planner(op).choose(problem)
        layer = Layer.of(problem, problem["grad"] if op == OPS[1] else problem.outputs)
        lay_out = separable.backward if op == OPS[1] else separable.forward
        assert any(lay_out(layer, tile).bytes <= separable.MOST for tile in separable.tiles(layer))


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("channels", "side"), [(16, 32), (64, 8)])
def test_every_tile_agrees(op, channels, side):
    args = arguments(op, (64, channels, side, side), channels, 5, 1, 4, 2)
    for tile in planner(op).sweep(Problem.of(SPECS[op], args)):
        judge(op, args, tile)


BLOCK = "sep_conv2d_batch_norm"


def with_statistics(shape, made, low=-1.0, high=1.0):
    """Return arguments of the operator that leaves moments, without padding."""
    x = torch.empty(shape, device=DEVICE).uniform_(low, high)
    dw, pw = torch.randn(shape[1], 1, 3, 3, device=DEVICE), torch.randn(made, shape[1], 1, 1, device=DEVICE)
    return x, dw, pw, 1, 0, 1, False, None, None, 1e-5


@pytest.mark.parametrize(
    "tile", [Tile(3, 6), Tile(7, 4, threads=128), Tile(1, 8, threads=512), Tile(9, 2, memory=1)], ids=str
)
def test_moments_of_parts_of_any_size(tile):
    """Of more groups of threads than channels and of fewer; of strips and bands that aren't whole."""
    for shape, made in (((2, 3, 11, 13), 7), ((3, 2, 6, 5), 70), ((2, 2, 5, 42), 1)):
        judge(BLOCK, with_statistics(shape, made), tile)


def test_moments_far_from_0():
    judge(BLOCK, with_statistics((4, 2, 12, 12), 3, 1000.0, 1001.0))


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "side"), [(16, 32), (32, 16), (64, 8)])
def test_moments_of_every_tile_agree(channels, side):
    args = with_statistics((64, channels, side, side), channels)
    for tile in planner(BLOCK).sweep(Problem.of(SPECS[BLOCK], args)):
        judge(BLOCK, args, tile)


class Blocks(nn.Module):
    """Four blocks on one tensor, one of them called twice."""

    def __init__(self):
        super().__init__()
        self.each = nn.ModuleList(
            nxcore.nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(4, 4, k, padding=k // 2, groups=4, bias=False),
                nn.Conv2d(4, 4, 1, bias=False),
                nn.BatchNorm2d(4),
            )
            for k in (3, 5, 3, 5)
        )

    def forward(self, x):
        return sum(block(x) for block in self.each) * self.each[0](x / 2)


def test_the_gradients_of_all_weights_of_a_captured_call_are_one_launch_with_the_same_bits(
    monkeypatch, together_has
):
    pinned = nxcore.op("column_sums", backend="cuda")
    summed = []

    def by_kernel(xs):
        summed.append(len(xs))
        return pinned(xs)

    monkeypatch.setattr(sequential, "_block", nxcore.op(BLOCK, backend="cuda"))
    together_has(_sums=lambda: SimpleNamespace(by_kernel=by_kernel))
    monkeypatch.setattr(watch, "capturing", lambda problem: True)
    torch.manual_seed(0)
    net, x = Blocks().to(DEVICE), torch.randn(3, 4, 7, 9, device=DEVICE, requires_grad=True)

    def gradients():
        return torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])

    want = gradients()
    for captured in (False, True):
        together_has(capturing=lambda shares, captured=captured: captured)
        with late(net) as waiting:
            found = gradients()
        torch.testing.assert_close(found, want, rtol=0, atol=0)
        assert waiting.sums.count == (8 if captured else 0), (
            "two of each block, whose second call has its own"
        )
    assert summed == [4, 4]


def test_more_blocks_than_a_block_has_threads():
    judge(BLOCK, with_statistics((70, 1, 10, 3), 1), Tile(1, 1))


BACKWARD = OPS[1]


@for_each(("channels", "side"), planes.TILES)
@for_each("window", [(3, 1, 1, 1), (5, 1, 2, 1), (3, 1, 2, 2), (5, 1, 4, 2)], ids=str)
def test_square_planes(channels, side, window):
    args = arguments(BACKWARD, (2, channels, side, side), channels, *window)
    tiles = tiles_of(BACKWARD, args, Planes)
    assert tiles
    for tile in tiles:
        judge(BACKWARD, args, tile)


@pytest.mark.parametrize(("channels", "side"), [(16, 32), (64, 8)])
def test_blocks_of_several_square_planes(channels, side):
    """The last of them has fewer."""
    args = arguments(BACKWARD, (3, channels, side, side), channels, 3, 1, 1, 1)
    judge(BACKWARD, args, replace(tiles_of(BACKWARD, args, Planes)[0], items=2))
    judge(BACKWARD, args, replace(tiles_of(BACKWARD, args, Planes)[0], items=4))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
def test_square_planes_with_a_corner_that_is_not_finite(value):
    """It counts only for the taps that see it."""
    args = arguments(BACKWARD, (1, 32, 16, 16), 32, 3, 1, 1, 1)
    args[1][0, 3, 0, 0] = args[1][0, 5, 15, 7] = value
    for tile in tiles_of(BACKWARD, args, Planes):
        judge(BACKWARD, args, tile)


def test_square_planes_are_only_of_what_their_kernels_know():
    usual = arguments(BACKWARD, (1, 16, 32, 32), 16, 3, 1, 1, 1)
    grad, x, dw, pw, *rest = usual
    assert tiles_of(BACKWARD, usual, Planes)
    channels_last = x.to(memory_format=torch.channels_last)
    odd = [
        arguments(BACKWARD, (1, 16, 31, 31), 16, 3, 1, 1, 1),
        arguments(BACKWARD, (1, 16, 32, 16), 16, 3, 1, 1, 1),
        arguments(BACKWARD, (1, 16, 32, 32), 8, 3, 1, 1, 1),
        arguments(BACKWARD, (1, 16, 32, 32), 16, 3, 2, 1, 1),
        arguments(BACKWARD, (1, 16, 32, 32), 16, 3, 1, 0, 1),
        arguments(BACKWARD, (1, 16, 32, 32), 16, 7, 1, 3, 1),
        arguments(BACKWARD, (1, 16, 32, 32), 16, 3, 1, 1, 1, relu=False),
        (grad, channels_last, dw, pw, *rest),
        (grad, x, dw, pw.transpose(0, 1), *rest),
        (*usual[:-1], (True, True, False)),
        tuple(t.half() if isinstance(t, torch.Tensor) else t for t in usual),
    ]
    assert [tiles_of(BACKWARD, args, Planes) for args in odd] == [[]] * len(odd)


def test_square_planes_that_begin_anywhere():
    args = begun_elsewhere(arguments(BACKWARD, (1, 64, 8, 8), 64, 5, 1, 2, 1), 4)
    judge(BACKWARD, args, tiles_of(BACKWARD, args, Planes)[0])
