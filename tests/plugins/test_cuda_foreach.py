"""Lists of separable convolutions in CUDA C++: the bits of single calls, every group, sums left to a cell."""

import pytest
import torch

import nxcore.ops
from nxcore.spec.problem import Problem
from nxcore.spec.sums import SUMS
from nxcore.trust.truth import agreement

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import (
    batch_norm,
    foreach,
    planes,
    sep_conv2d,
    sep_conv2d_backward,
    sep_conv2d_batch_norm,
    separable,
)
from nxcore_cuda import foreach_sep_conv2d_batch_norm as forward
from nxcore_cuda import foreach_sep_conv2d_batch_norm_backward as backward
from nxcore_cuda.foreach import Group
from nxcore_cuda.planes import Planes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
OP = "foreach_sep_conv2d_batch_norm"
MODULES = {OP: forward, f"{OP}_backward": backward}
DARTS = ((3, 1, 1, 1), (5, 1, 2, 1), (3, 1, 2, 2), (5, 1, 4, 2))
"""Size, stride, padding and dilation of an edge's convolutions."""


def arguments(shape=(2, 6, 9, 12), made=5, windows=DARTS, normed=None):
    """Return arguments of the operator: all convolutions are of one tensor."""
    x = torch.randn(shape, device=DEVICE)
    dw = tuple(torch.randn(shape[1], 1, k, k, device=DEVICE) for k, *_ in windows)
    pw = tuple(torch.randn(made, shape[1], 1, 1, device=DEVICE) for _ in windows)
    numbers = tuple(tuple(window[i] for window in windows) for i in (1, 2, 3))
    return (x,) * len(windows), dw, pw, *numbers, normed, True, 1e-5


def arguments_backward(mask=None, **how):
    """Return arguments of the gradients."""
    *given, normed, relu, eps = arguments(**how)
    outs, ys, mean, var = SPECS[OP].reference(*given, normed, relu, eps)
    grads = tuple(map(torch.randn_like, outs))
    return grads, *given[:3], ys, *given[3:], mean, var, normed, relu, eps, mask


def made(op, *how, **more):
    return (arguments if op == OP else arguments_backward)(*how, **more)


def planned(op, args, group=None):
    return MODULES[op].plan(Problem.of(SPECS[op], args), group)


def judge(op, args, group=None):
    """Run an operator and compare it with float64."""
    found = agreement(planned(op, args, group), SPECS[op], args)
    assert found.ok, (group, found.reason)


GROUPS = [Group(20_000), Group(9_000, 128), Group(20_000, together=False)]


def exact(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_results_have_the_bits_of_single_calls(group):
    args = arguments(normed=(True, True, False, True))
    outs, ys, mean, var = planned(OP, args, group)(*args)
    kept = iter(zip(ys, mean, var, strict=True))
    tiles = forward.tiles(Problem.of(SPECS[OP], args), group)
    for i, (tile, norm) in enumerate(zip(tiles, args[6], strict=True)):
        one = (*(values[i] for values in args[:6]), True)
        if norm:
            one = (*one, None, None, 1e-5)
            problem = Problem.of(SPECS["sep_conv2d_batch_norm"], one)
            exact((outs[i], *next(kept)), sep_conv2d_batch_norm.plan(problem, tile)(*one))
        else:
            exact(outs[i], sep_conv2d.plan(Problem.of(SPECS["sep_conv2d"], one), tile)(*one))


def single_gradients(args, i, tile, kept):
    """Return the gradients of one convolution by the operators on single tensors."""
    grads, *lists = args
    grad, (x, dw, pw), window = grads[i], (values[i] for values in lists[:3]), [n[i] for n in lists[4:7]]
    if kept:
        # Clones: rows of the statistics needn't lie where vectors may begin.
        norm = (grad, *(t.clone() for t in kept), None, 1e-5, (True, False, False))
        grad = batch_norm.plan_backward(Problem.of(SPECS["batch_norm_backward"], norm))(*norm)[0]
    one = (grad, x, dw, pw, *window, True, (True,) * 3)
    return sep_conv2d_backward.plan(Problem.of(SPECS["sep_conv2d_backward"], one), tile)(*one)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_gradients_have_the_bits_of_single_calls(group):
    op = f"{OP}_backward"
    args = arguments_backward(normed=(True, False, True, True))
    found = planned(op, args, group)(*args)
    tiles, kept = (
        backward.tiles(Problem.of(SPECS[op], args), group),
        iter(zip(args[4], args[8], args[9], strict=True)),
    )
    for i, (tile, norm) in enumerate(zip(tiles, args[10], strict=True)):
        want = single_gradients(args, i, tile, next(kept) if norm else ())
        exact(tuple(each[i] for each in found), want)


@pytest.mark.slow
@pytest.mark.parametrize("op", MODULES)
def test_every_group_agrees(op):
    args = made(op)
    groups = list(MODULES[op].sweep(Problem.of(SPECS[op], args)))
    assert groups[0] == MODULES[op].choose(Problem.of(SPECS[op], args))
    assert {group.together for group in groups} == {True, False}
    for group in groups:
        judge(op, args, group)


@pytest.mark.parametrize("op", MODULES)
def test_a_launch_has_as_many_as_its_arguments_have_room_for(op):
    """As many convolutions, and as many windows; the rest have another."""
    problem = Problem.of(SPECS[op], made(op, shape=(2, 2, 6, 6), windows=DARTS * 9))
    works = [foreach.Work((k, s, d), (k, d, i % 2), 4, 1, 8) for i, (k, s, _, d) in enumerate(DARTS * 9)]
    assert [len(batch) for batch in foreach.batches(works, together=True)] == [32, 4]
    assert [len(batch) for batch in foreach.batches(works, together=False)] == [9] * 4
    assert len(problem["xs"]) == len(works)
    many = [foreach.Work((3, 1, 1), (i,), 4, 1, 8) for i in range(20)]
    assert [len(batch) for batch in foreach.batches(many, together=True)] == [6, 6, 6, 2]


def test_blocks_that_make_several_bands(monkeypatch):
    """27 bands of a row each, for six blocks."""
    monkeypatch.setattr(backward, "MOST_BLOCKS", 6)
    op, args, group = f"{OP}_backward", arguments_backward(shape=(3, 4, 9, 8)), Group(9_000)
    assert {tile.band for tile in backward.tiles(Problem.of(SPECS[op], args), group)} == {1}
    judge(op, args, group)


def test_square_planes_have_launches_of_their_own():
    """One convolution, whose filters need no gradient, is in the others' launch."""
    op, windows = f"{OP}_backward", (*DARTS, DARTS[0], (3, 1, 1, 1))
    mask = [True] * 18
    mask[6 + 5] = False
    args = arguments_backward(mask=tuple(mask), shape=(3, 32, 16, 16), made=32, windows=windows)
    for numbers in ((), (0, 1), (3, 2)):
        judge(op, args, Group(60_000, planes=numbers))


def of_shape(images, channels, side, window, count):
    """Return layers of as many convolutions of square planes."""
    shape = (images, channels, side, side)
    args = arguments_backward(shape=shape, made=channels, windows=(window,) * count)
    return separable.layers(Problem.of(SPECS[f"{OP}_backward"], args))


@pytest.mark.parametrize(
    ("plane", "images", "count", "index", "tile"),
    [
        ((16, 32), 64, 4, 0, Planes(16, 256, 4, 4, 8, items=2)),
        ((16, 32), 64, 2, 0, Planes(16, 256, 4, 4, 8)),
        ((32, 16), 64, 1, 0, Planes(16, 256, 4, 8, 8)),
        ((32, 16), 64, 1, 1, Planes(8, 256, 4, 8, 8)),
        ((32, 16), 64, 2, 1, Planes(16, 256, 4, 8, 8)),
        ((64, 8), 64, 4, 2, Planes(8, 256, 4, 8, 2)),
    ],
    ids=str,
)
def test_square_planes_have_the_tile_that_was_measured_to_be_ahead(plane, images, count, index, tile):
    layers = of_shape(images, *plane, DARTS[index], count)
    assert planes.choose(layers[0], count) == tile
    which = list(range(count))
    assert [(batch, own) for batch, _, own in planes.launches(layers, which, (), DEVICE)] == [(which, tile)]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("each", [3, 4])
def test_outputs_of_few_convolutions_share_a_launch(each, back):
    layers = of_shape(1, 16, 32, DARTS[0], each) + of_shape(1, 16, 32, DARTS[1], each)
    assert foreach.choose(layers, DEVICE, back=back).together == (each < 4 and not back)


class Together(torch.autograd.Function):
    """Gives all weights to a call, whose gradients it gets together."""

    @staticmethod
    def forward(ctx, *weights):
        return tuple(weight.view_as(weight) for weight in weights)


class Left:
    """Notes what kernels leave, and adds up each by itself."""

    def __init__(self):
        self.shares = []

    def leave(self, shares, weights, finish):
        """Note the shares of two weights."""
        assert shares.shape[1] == sum(weight.numel() for weight in weights)
        self.shares.append(shares)
        return finish()


@pytest.mark.parametrize("all_of_them", [True, False])
def test_shares_of_weights_are_left_where_all_have_one_sum(all_of_them):
    grads, xs, dw, pw, *rest = arguments_backward()
    want = planned(f"{OP}_backward", (grads, xs, dw, pw, *rest))(grads, xs, dw, pw, *rest)
    weights = Together.apply(*(weight.clone().requires_grad_() for weight in (*dw, *pw)))
    left = Left()
    setattr(weights[0].grad_fn, SUMS, left)
    given = [grads, xs, weights[:4], weights[4:], *rest]
    if not all_of_them:
        given[2] = (dw[0], *weights[1:4])
    with torch.no_grad():
        found = planned(f"{OP}_backward", tuple(given))(*given)
    exact(found, want)
    assert len(left.shares) == (4 if all_of_them else 0)
    for i, shares in enumerate(left.shares):
        torch.testing.assert_close(shares.sum(0), torch.cat([want[1][i].flatten(), want[2][i].flatten()]))


@pytest.mark.gpu
@pytest.mark.parametrize("op", MODULES)
@pytest.mark.parametrize(("channels", "side"), [(16, 32), (32, 16), (64, 8)])
def test_what_leaves_a_state_of_a_search_agrees(op, channels, side):
    args = made(op, shape=(64, channels, side, side), made=channels, windows=DARTS * 4)
    for group in MODULES[op].sweep(Problem.of(SPECS[op], args)):
        judge(op, args, group)
