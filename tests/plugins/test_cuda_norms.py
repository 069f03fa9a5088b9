"""nxcore-cuda's batch_norm: every tile, and which calls get one kernel."""

import pytest
import torch

import nxcore.ops
from nxcore.plugin import TensorMeta
from nxcore.spec.problem import Problem
from nxcore.trust.truth import agreement

pytest.importorskip("nxcore_cuda")

from nxcore_cuda import batch_norm
from nxcore_cuda.channel import Channels

from tests.table import for_each

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
OPS = ("batch_norm", "batch_norm_backward")


def arguments(op, shape):
    """Return arguments of the operator or its gradient, with factors."""
    x, factors = torch.randn(shape, device=DEVICE), [torch.randn(shape[1], device=DEVICE) for _ in range(2)]
    if op == OPS[0]:
        return x, *factors, 1e-5
    _, mean, var = SPECS[OPS[0]].reference(x)
    return torch.randn(shape, device=DEVICE), x, mean, var, factors[0], 1e-5, (True,) * 3


def planned(op, args, tile=None):
    """Return the kernel of a call in a tile, and the tiles that there are."""
    backward = op == OPS[1]
    problem = Problem.of(SPECS[op], args)
    plan = batch_norm.plan_backward if backward else batch_norm.plan
    return plan(problem, tile), (batch_norm.sweep_backward if backward else batch_norm.sweep)(problem)


@pytest.mark.slow
@for_each("op", OPS)
@for_each("shape", [(3, 4, 24, 24), (5, 3, 11, 13), (6, 33, 12, 12), (11, 2, 1, 1)])
def test_every_tile_agrees(op, shape):
    args = arguments(op, shape)
    tiles = list(planned(op, args)[1])
    assert any(tile.whole for tile in tiles)
    for tile in [tile for tile in tiles if tile.whole or tile.threads < 512]:
        found = agreement(planned(op, args, tile)[0], SPECS[op], args)
        assert found.ok, (tile, found.reason)


@pytest.mark.parametrize(
    ("shape", "whole"),
    [
        ((64, 64, 8, 8), True),
        ((64, 32, 16, 16), True),
        ((64, 16, 32, 32), False),
        ((64, 64, 32, 32), False),
        ((64, 31, 8, 8), False),
    ],
)
def test_many_channels_that_a_block_can_hold_get_a_block_each(shape, whole):
    meta = TensorMeta.row_major(shape, torch.float32, DEVICE)
    assert batch_norm.choose(Channels.of(meta, meta)).whole == whole
