"""Separable convolutions on square planes at stride 2, in CUDA C++: what samples don't show."""

from dataclasses import replace

import pytest
import torch

from nxcore.spec.problem import Problem
from tests.plugins.cuda_tiles import DEVICE, SPECS, begun_elsewhere, judge, tiles_of

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import foreach_sep_conv2d_batch_norm as foreach_forward
from nxcore_cuda import foreach_sep_conv2d_batch_norm_backward as foreach_backward
from nxcore_cuda import sep_conv2d, sep_conv2d_backward, separable, strided_planes, strided_planes_forward
from nxcore_cuda.foreach import Group
from nxcore_cuda.planes import Planes, Shape
from nxcore_cuda.strided_planes_forward import Lines

from tests.table import for_each

BACKWARD, GROUPED = "sep_conv2d_backward", "foreach_sep_conv2d_batch_norm_backward"
WINDOWS = ((3, 2, 1, 1), (5, 2, 2, 1), (3, 2, 2, 2), (5, 2, 4, 2))  # size, stride, padding, dilation


def arguments(images, channels, side, k, *window, relu=True):
    """Return arguments of the gradients of one convolution."""
    x = torch.randn(images, channels, side, side, device=DEVICE)
    dw, pw = (torch.randn(*s, device=DEVICE) for s in ((channels, 1, k, k), (channels, channels, 1, 1)))
    grad = torch.randn_like(SPECS["sep_conv2d"].reference(x, dw, pw, *window))
    return grad, x, dw, pw, *window, relu, (True, True, True)


@pytest.mark.slow
@for_each(("channels", "side"), strided_planes.TILES)
@for_each("window", WINDOWS, ids=str)
def test_every_tile_agrees(channels, side, window):
    args = arguments(2, channels, side, *window)
    tiles = tiles_of(BACKWARD, args, Planes)
    assert tiles[0] == sep_conv2d_backward.choose(Problem.of(SPECS[BACKWARD], args))
    assert tiles == list(strided_planes.tiles(Shape(window[0], window[3], channels, side)))
    for tile in tiles:
        judge(BACKWARD, args, tile)


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "side"), strided_planes.TILES)
def test_blocks_of_several_images(channels, side):
    """The last of them has fewer."""
    args = arguments(3, channels, side, *WINDOWS[1])
    for items in (2, 4):
        judge(BACKWARD, args, replace(tiles_of(BACKWARD, args, Planes)[0], items=items))


@pytest.mark.slow
@for_each("value", [float("inf"), float("nan"), -float("inf")])
@for_each(("channels", "side"), strided_planes.TILES)
@for_each("window", WINDOWS, ids=str)
def test_pixels_at_edges_that_are_not_finite(channels, side, window, value):
    """They count only for the taps that see them."""
    args = arguments(1, channels, side, *window)
    last = side - window[3]  # a dilated window sees no odd pixel
    for channel, (row, column) in enumerate(
        ((0, 0), (last, last), (0, last), (side // 2, 0), (side // 2 - window[3], last))
    ):
        args[1][0, 3 * channel, row, column] = value
    for tile in tiles_of(BACKWARD, args, Planes):
        judge(BACKWARD, args, tile)


@pytest.mark.parametrize("size", [3, 5])
def test_no_window_sees_an_odd_pixel_where_it_is_dilated(size):
    """Not where it isn't finite either: its gradient is 0."""
    args = arguments(1, 64, 16, size, 2, size - 1, 2)
    args[1][0, :, 1::2] = float("nan")
    args[1][0, :, :, 1::2] = float("inf")
    tile = tiles_of(BACKWARD, args, Planes)[0]
    call = sep_conv2d_backward.plan(Problem.of(SPECS[BACKWARD], args), tile)
    x_grad, *weights = call(*args)
    assert not x_grad[0, :, 1::2].any()
    assert not x_grad[0, :, :, 1::2].any()
    assert all(grad.isfinite().all() for grad in weights)
    judge(BACKWARD, args, tile)


def test_kernels_take_only_what_they_know():
    usual = arguments(1, 64, 16, *WINDOWS[0])
    grad, x, dw, pw, *rest = usual
    assert tiles_of(BACKWARD, usual, Planes)
    channels_last = x.to(memory_format=torch.channels_last)
    odd = [
        arguments(1, 64, 15, *WINDOWS[0]),
        arguments(1, 64, 8, *WINDOWS[0]),
        arguments(1, 32, 16, *WINDOWS[0]),
        arguments(1, 64, 16, 3, 2, 0, 1),
        arguments(1, 64, 16, 3, 2, 2, 1),
        arguments(1, 64, 16, 7, 2, 3, 1),
        arguments(1, 64, 16, *WINDOWS[0], relu=False),
        (grad, channels_last, dw, pw, *rest),
        (grad, x, dw, pw.transpose(0, 1), *rest),
        (*usual[:-1], (True, True, False)),
        tuple(t.half() if isinstance(t, torch.Tensor) else t for t in usual),
    ]
    assert [tiles_of(BACKWARD, args, Planes) for args in odd] == [[]] * len(odd)


@pytest.mark.parametrize(("channels", "side"), strided_planes.TILES)
def test_tensors_that_begin_anywhere(channels, side):
    args = begun_elsewhere(arguments(1, channels, side, *WINDOWS[1]), 4)
    judge(BACKWARD, args, tiles_of(BACKWARD, args, Planes)[0])


def test_two_blocks_of_the_usual_tile_have_room_or_one():
    """Where the points don't fit, a block reads a few of them from global memory."""
    usual = {
        (window, plane): (Shape(window[0], window[3], *plane), strided_planes.TILES[plane][0])
        for window in WINDOWS
        for plane in strided_planes.TILES
    }
    alone = {key for key, each in usual.items() if strided_planes.memory(*each) > 113 * 1024}
    assert alone == {(window, plane) for window in WINDOWS for plane in ((72, 32), (144, 16))}
    assert all(strided_planes.memory(*each) <= 227 * 1024 for each in usual.values())
    left = {key for key, each in usual.items() if strided_planes.left(*each)}
    assert left == {*((window, (64, 16)) for window in WINDOWS[:2]), (WINDOWS[1], (144, 16))}


def several(images, channels, side, windows, mask=None):
    """Return arguments of the gradients of several convolutions of one image, without norms."""
    each = [arguments(images, channels, side, *window) for window in windows]
    grads, xs, dws, pws, strides, pads, dilations, *_ = (tuple(a) for a in zip(*each, strict=True))
    asked = mask or (True,) * (3 * len(windows))
    rest = ((), strides, pads, dilations, None, None, (False,) * len(windows), True, 1e-5)
    return grads, (xs[0],) * len(windows), dws, pws, *rest, asked


@pytest.mark.parametrize("numbers", [(), (0, 2), (2, 1)], ids=str)
def test_groups_have_launches_of_their_own(numbers):
    """One convolution, whose points need no gradient, is in the others' launch."""
    windows, count = (*WINDOWS, WINDOWS[0], WINDOWS[1]), 6
    mask = [True] * 18
    mask[2 * count + 5] = False
    judge(GROUPED, several(3, 32, 32, windows, tuple(mask)), Group(60_000, planes=numbers))


def test_a_group_of_both_strides():
    args = several(1, 64, 16, WINDOWS[:2])
    more = several(1, 64, 8, ((3, 1, 1, 1), (5, 1, 4, 2)))
    both = tuple(a + b if isinstance(a, tuple) else a for a, b in zip(args[:13], more[:13], strict=True))
    given = (*both, (True,) * 12)
    problem = Problem.of(SPECS[GROUPED], given)
    group = foreach_backward.choose(problem)
    assert group.planes == ()
    judge(GROUPED, given, group)


def test_one_launch_has_all_of_a_window():
    problem = Problem.of(SPECS[GROUPED], several(2, 64, 16, WINDOWS * 2))
    made = strided_planes.launches(separable.layers(problem), list(range(8)), (), DEVICE)
    usual = strided_planes.TILES[64, 16][0]
    assert [(batch, tile) for batch, _, tile in made] == [([i, i + 4], usual) for i in range(4)]


FORWARD, BLOCK, GROUP = "sep_conv2d", "sep_conv2d_batch_norm", "foreach_sep_conv2d_batch_norm"


@pytest.mark.slow
@for_each(("channels", "side"), strided_planes_forward.TILES)
@for_each("window", WINDOWS, ids=str)
def test_every_tile_of_outputs_agrees(channels, side, window):
    """Their moments too: the means are far from 0."""
    args = arguments(2, channels, side, *window)[1:-1]
    tiles = tiles_of(FORWARD, args, Lines)
    assert tiles == list(strided_planes_forward.TILES[channels, side])
    assert tiles[0] == sep_conv2d.choose(Problem.of(SPECS[FORWARD], args))
    moved = (args[0], args[1].abs() + 1, args[2].abs() + 1, *args[3:], None, None, 1e-5)
    for tile in tiles:
        judge(FORWARD, args, tile)
        judge(BLOCK, moved, tile)


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
@pytest.mark.parametrize(("channels", "side"), strided_planes_forward.TILES)
def test_outputs_of_pixels_that_are_not_finite(channels, side, value):
    args = arguments(1, channels, side, *WINDOWS[1])[1:-1]
    args[0][0, 3, 0, 0] = args[0][0, 5, side - 1, side - 1] = args[0][0, 7, side // 2, 0] = value
    for tile in tiles_of(FORWARD, args, Lines):
        judge(FORWARD, args, tile)


def test_kernels_of_outputs_take_only_what_they_know():
    usual = arguments(1, 64, 16, *WINDOWS[0])[1:-1]
    assert tiles_of(FORWARD, usual, Lines)
    odd = [
        arguments(1, 64, 16, 3, 2, 0, 1)[1:-1],
        arguments(1, 32, 16, *WINDOWS[0])[1:-1],
        (*usual[:-1], False),
        (usual[0].to(memory_format=torch.channels_last), *usual[1:]),
        tuple(t.half() if isinstance(t, torch.Tensor) else t for t in usual),
    ]
    assert [tiles_of(FORWARD, args, Lines) for args in odd] == [[]] * len(odd)


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "side"), strided_planes_forward.TILES)
def test_outputs_of_tensors_that_begin_anywhere(channels, side):
    args = begun_elsewhere(arguments(1, channels, side, *WINDOWS[0])[1:-1], 3)
    judge(FORWARD, args, tiles_of(FORWARD, args, Lines)[0])


@pytest.mark.parametrize("normed", [(True,) * 6, (False,) * 6, (True, False) * 3], ids=str)
def test_groups_of_outputs_have_launches_of_their_own(normed):
    """As has one of stride 1."""
    each = [arguments(3, 32, 32, *window)[1:7] for window in (*WINDOWS, WINDOWS[0])]
    each.append(arguments(3, 32, 16, 3, 1, 1, 1)[1:7])
    given = (*map(tuple, zip(*each, strict=True)), normed, True, 1e-5)
    problem = Problem.of(SPECS[GROUP], given)
    group = foreach_forward.choose(problem)
    assert group.planes == ()
    for numbers in ((), (1,), None):
        judge(GROUP, given, replace(group, planes=numbers))
