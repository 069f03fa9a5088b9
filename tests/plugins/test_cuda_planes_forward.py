"""Outputs of separable convolutions on square planes in CUDA C++: every tile, and which calls have them."""

import pytest
import torch

from nxcore.spec.problem import Problem
from tests.plugins.cuda_tiles import DEVICE, SPECS, begun_elsewhere, judge, tiles_of

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import foreach_sep_conv2d_batch_norm as grouped
from nxcore_cuda import planes_forward, sep_conv2d, separable
from nxcore_cuda.foreach import Group
from nxcore_cuda.planes_forward import FOREACH, FORWARD, TILES, Images, Outputs

from tests.table import for_each

SINGLE, BLOCK, LIST = "sep_conv2d", "sep_conv2d_batch_norm", "foreach_sep_conv2d_batch_norm"
WINDOWS = ((3, 1, 1, 1), (5, 1, 4, 2), (5, 1, 2, 1), (3, 1, 2, 2))
"""Size, stride, padding and dilation."""


def arguments(images, channels, side, size, stride=1, pad=0, dilation=1, *, relu=True, made=None):
    """Return a call of one convolution."""
    x = torch.randn(images, channels, side, side, device=DEVICE)
    filters = torch.randn(channels, 1, size, size, device=DEVICE)
    points = torch.randn(made or channels, channels, 1, 1, device=DEVICE)
    return x, filters, points, stride, pad, dilation, relu


def several(images, plane, windows, normed):
    """Return a call of convolutions of one tensor."""
    each = [arguments(images, *plane, *window) for window in windows]
    _, filters, points, strides, pads, dilations, _ = zip(*each, strict=True)
    xs = (each[0][0],) * len(each)
    return xs, filters, points, strides, pads, dilations, normed, True, 1e-5


@pytest.mark.slow
@for_each("plane", TILES, ids=str)
@for_each("window", WINDOWS, ids=str)
def test_every_tile_agrees_and_leaves_moments(plane, window):
    """The last block has fewer images than the others. Rarer windows have the usual tile alone."""
    args = arguments(3, *plane, *window)
    tiles = tiles_of(SINGLE, args, Outputs)
    assert set(tiles) == set(TILES[plane])
    for tile in tiles if window in WINDOWS[:2] else tiles[:1]:
        judge(BLOCK, (*args, None, None, 1e-5), tile)


@pytest.mark.slow
@pytest.mark.parametrize("plane", TILES, ids=str)
def test_negative_pixels_count_where_there_is_no_relu(plane):
    args = arguments(1, *plane, *WINDOWS[0], relu=False)
    for tile in tiles_of(SINGLE, args, Outputs)[:1]:
        judge(SINGLE, args, tile)


def test_moments_far_from_0():
    x, *rest = arguments(4, 64, 8, *WINDOWS[0])
    for tile in tiles_of(SINGLE, (x, *rest), Outputs):
        judge(BLOCK, (x + 1000.0, *rest, None, None, 1e-5), tile)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
def test_pixels_that_are_not_finite_count_where_a_window_sees_them(value):
    args = arguments(1, 32, 16, *WINDOWS[0])
    args[0][0, 3, 0, 0] = args[0][0, 5, 15, 7] = args[0][0, 31, 8, 15] = value
    for tile in tiles_of(SINGLE, args, Outputs):
        judge(SINGLE, args, tile)


def test_tensors_that_begin_anywhere():
    args = begun_elsewhere(arguments(1, 64, 8, *WINDOWS[0]), 3)
    problem = Problem.of(SPECS[SINGLE], args)
    tile = planes_forward.choose(separable.Layer.of(problem, problem.outputs))
    out = torch.empty(args[0].numel() + 1, device=DEVICE)[1:].view(args[0].shape)
    launch, _ = sep_conv2d.launched(problem, tile)
    launch(*args[:3], out, None)
    want = SPECS[SINGLE].reference(*(t.double() if isinstance(t, torch.Tensor) else t for t in args))
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


def test_only_calls_that_the_kernels_know_have_them():
    x, *rest = usual = arguments(1, 16, 32, *WINDOWS[0])
    assert isinstance(sep_conv2d.choose(Problem.of(SPECS[SINGLE], usual)), Outputs)
    odd = [
        arguments(1, 16, 31, *WINDOWS[0]),
        arguments(1, 16, 32, *WINDOWS[0], made=8),
        arguments(1, 16, 32, 3, 2, 1, 1),
        arguments(1, 16, 32, 3, 1, 0, 1),
        arguments(1, 16, 32, 7, 1, 3, 1),
        (x.to(memory_format=torch.channels_last), *rest),
        tuple(t.half() if isinstance(t, torch.Tensor) else t for t in usual),
    ]
    for args in odd:
        assert not tiles_of(SINGLE, args, Outputs)
        assert not isinstance(sep_conv2d.choose(Problem.of(SPECS[SINGLE], args)), Outputs)


@for_each("plane", TILES, ids=str)
@for_each("normed", [None, (True, False, False, True, True, False), (False,) * 6], ids=str)
def test_lists_have_one_launch_of_all_windows_and_another_of_the_rest(plane, normed):
    """The last convolution's padding isn't the window's."""
    args = several(2, plane, (*WINDOWS, WINDOWS[0], (3, 1, 0, 1))[: 6 if normed else 5], normed)
    if normed is not None and plane != (64, 8):
        args = several(1, plane, (*WINDOWS, *WINDOWS[:2]), normed)
    judge(LIST, args, Group(60_000, planes=()))


def test_every_number_is_a_tile():
    args = several(3, (64, 8), WINDOWS[:2], (True, False))
    for numbers in (*planes_forward.numbers(), (9,)):
        judge(LIST, args, Group(60_000, planes=numbers))


def test_the_chosen_group_has_planes_and_comes_first():
    problem = Problem.of(SPECS[LIST], several(1, (64, 8), WINDOWS[:2], None))
    groups = list(grouped.sweep(problem))
    assert groups[0] == grouped.choose(problem)
    assert groups[0].planes == ()
    assert any(group.planes is None for group in groups)
    assert {group.planes for group in groups} >= set(planes_forward.numbers())
    odd = Problem.of(SPECS[LIST], several(1, (64, 8), ((7, 1, 3, 1),), None))
    assert grouped.choose(odd).planes is None


def test_a_launch_has_no_more_convolutions_than_its_arguments_have_room_for():
    problem = Problem.of(SPECS[LIST], several(1, (64, 8), (WINDOWS[0],) * 33, None))
    layers = separable.layers(problem)
    made = planes_forward.launches(layers, list(range(33)), (), DEVICE, relu=True)
    assert [len(batch) for batch, *_ in made] == [32, 1]


@pytest.mark.parametrize("plane", TILES, ids=str)
def test_blocks_fit_into_shared_memory_and_are_whole_warps(plane):
    """So many blocks as the compiler makes room for have shared memory on a multiprocessor of 228 KiB."""
    for tile in TILES[plane]:
        shape = Images(*plane)
        needed = planes_forward.memory(shape, tile, 5) + 1024
        assert needed * tile.resident <= 228 * 1024
        assert tile.threads(shape) % 32 == 0
        assert tile.threads(shape) * tile.resident <= 512


def layer_of(images, plane):
    """Return the layer of a convolution whose images are described, not made."""
    x, *rest = arguments(1, *plane, *WINDOWS[0])
    problem = Problem.of(SPECS[SINGLE], (x.expand(images, -1, -1, -1), *rest))
    return separable.Layer.of(problem, problem.outputs)


@pytest.mark.parametrize("plane", TILES, ids=str)
def test_what_is_chosen_is_compiled_ahead(plane):
    ahead = {entry: {each.symbol for each in planes_forward.instances(entry)} for entry in (FORWARD, FOREACH)}
    for images in (1, 64, 300, 1000):
        tile = planes_forward.choose(layer_of(images, plane))
        every = planes_forward.instance(FOREACH, Images(*plane), tile, (31, 51, 32, 52))
        assert every.symbol in ahead[FOREACH]
        for code in (31, 51, 32, 52):
            assert planes_forward.instance(FORWARD, Images(*plane), tile, (code,)).symbol in ahead[FORWARD]


@pytest.mark.parametrize(
    ("plane", "numbers"), [((16, 32), (0,) * 5), ((32, 16), (2, 2, 2, 0, 0)), ((64, 8), (2, 2, 2, 1, 0))]
)
def test_launches_have_the_tile_that_was_measured_to_be_ahead(plane, numbers):
    layer = layer_of(64, plane)
    found = [planes_forward.choose(layer, count) for count in (1, 2, 4, 8, 16)]
    assert found == [TILES[plane][number] for number in numbers]
