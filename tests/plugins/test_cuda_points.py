"""1x1 convolutions in CUDA C++: every tile, and what the samples of their specs are too small to show."""

import pytest
import torch

from nxcore.graphs.late import late
from nxcore.graphs.together import weights_of
from nxcore.spec.problem import Problem
from tests.plugins.cuda_tiles import DEVICE, SPECS, judge, planner

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import accepts, points, pointwise_conv2d_backward
from nxcore_cuda.points import Points, Tile

FORWARD, BACKWARD = "pointwise_conv2d", "pointwise_conv2d_backward"
SHAPES = {  # channels in, channels out, side, stride, and whether there are shifted filters
    "planes": (37, 19, 8, 1, False),
    "reduction": (20, 18, 16, 2, True),
    "strided": (20, 18, 16, 2, False),
}


def arguments(op, channels, made, side, stride, shifted, images=2):
    torch.manual_seed(0)
    x = torch.randn(images, channels, side, side, device=DEVICE)
    weight = torch.randn(made, channels, 1, 1, device=DEVICE)
    more = torch.randn(5, channels, 1, 1, device=DEVICE) if shifted else None
    if op == FORWARD:
        return x, weight, more, stride, True
    grad = torch.randn_like(SPECS[FORWARD].reference(x, weight, more, stride))
    return grad, x, weight, more, stride, True, (True, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
def test_every_tile(op, shape):
    args = arguments(op, *SHAPES[shape])
    tiles = list(planner(op).sweep(Problem.of(SPECS[op], args)))
    assert len(tiles) > 5
    for tile in tiles:
        judge(op, args, tile)


@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
def test_data_that_is_not_aligned_has_the_kernel_without_vectors(op):
    args = arguments(op, 6, 5, 8, 2, True)
    moved = tuple(
        torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape) if isinstance(t, torch.Tensor) else t
        for t in args
    )
    assert moved[0].data_ptr() % 16
    judge(op, moved, None)


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        ((48, 16, 32, 1, False), (4, 2)),
        ((32, 16, 32, 2, True), (4, 2)),
        ((8, 8, 6, 1, False), (4, 2)),  # 36 pixels of a plane
        ((8, 8, 12, 2, True), (2,)),  # 6 pixels of a row
        ((8, 8, 7, 2, False), ()),
        ((8, 8, 9, 3, False), ()),
    ],
)
def test_vectors_are_as_long_as_rows_or_planes_allow(shape, lengths):
    forward = Points.of(Problem.of(SPECS[FORWARD], arguments(FORWARD, *shape)))
    assert forward.whole == lengths
    assert points.choose(forward).pixels == (2 if lengths else 1)
    back = Points.turned_of(Problem.of(SPECS[BACKWARD], arguments(BACKWARD, *shape)))
    assert points.choose(back).pixels == (4 if shape[3] == 1 else 2 if lengths else 1)


def test_few_pixels_have_warps_that_share_channels():
    args = arguments(BACKWARD, 256, 64, 8, 1, False, images=64)
    back = Points.turned_of(Problem.of(SPECS[BACKWARD], args))
    assert points.choose(back) == Tile(4, 16, 4)
    forward = Points.of(Problem.of(SPECS[FORWARD], args[1:-1]))
    assert points.choose(forward) == Tile(2, 16, 8)


def test_gradients_of_few_terms_have_eight_channels_a_thread():
    args = arguments(BACKWARD, 128, 32, 16, 1, False, images=64)
    assert points.choose(Points.turned_of(Problem.of(SPECS[BACKWARD], args))) == Tile(4, 8, 1)


def test_filters_that_do_not_fit_into_shared_memory_are_refused():
    args = arguments(FORWARD, 2000, 2, 2, 1, False)
    found = accepts.points(Problem.of(SPECS[FORWARD], args))
    assert not found
    assert "a block's filters take" in found.reason
    only_filters = (*arguments(BACKWARD, 2, 2000, 2, 1, False)[:-1], (False, True, False))
    assert accepts.points(Problem.of(SPECS[BACKWARD], only_filters))


def test_shares_of_a_captured_call_are_added_up_with_those_of_other_weights():
    """The columns of what blocks leave are the gradients of both filters, one behind the other."""
    grad, x, weight, more, stride, relu, mask = arguments(BACKWARD, 20, 18, 16, 2, True)
    plan = pointwise_conv2d_backward.plan(
        Problem.of(SPECS[BACKWARD], (grad, x, weight, more, stride, relu, mask))
    )
    wanted = plan(grad, x, weight, more, stride, relu, mask)
    held = torch.nn.ParameterList([weight, more])
    with late(held):
        given = weights_of(*held)
        left = []
        node = given[0].grad_fn.nxcore_sums
        node.leave = lambda shares, weights, finish: (left.append((shares, weights)), finish())[1]
        plan(grad, x, *given, stride, relu, mask)
    ((shares, weights),) = left
    assert [w.shape for w in weights] == [weight.shape, more.shape]
    sums = shares.sum(0).split([weight.numel(), more.numel()])
    for found, want in zip(sums, wanted[1:], strict=True):
        torch.testing.assert_close(found, want.flatten())
