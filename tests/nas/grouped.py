"""Cells whose separable convolutions may be computed together, plain and patched."""

import copy

import torch
from torch import nn

from nxcore import nas
from nxcore.graphs.late import late
from tests.nas import darts
from tests.nn.parts import outcome

FORWARD, BACKWARD = "foreach_sep_conv2d_batch_norm", "foreach_sep_conv2d_batch_norm_backward"


def cells(make):
    torch.manual_seed(0)
    plain = nn.Sequential(make()).double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, graphs=False, watch=False)
    return plain, patched


def given(rows, width, channels=4):
    states = [torch.randn(2, channels, 8, 8).double() for _ in range(2)]
    return [*states, torch.rand(rows, width).double()]


def same(plain, patched, args):
    with late(patched[0]):
        got = outcome(patched[0], *args)
    for one, want in zip(got, outcome(plain[0], *args), strict=True):
        torch.testing.assert_close(one, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict(), rtol=1e-12, atol=1e-12)


def met(plain, patched, args):
    """Have the cell's readers noted."""
    for net in (plain, patched):
        outcome(net[0], *args)


def cell():
    return darts.Cell(2, 4, 4, 4, False, False)


COUNTS = [8, 4, 8, 4, 4, 2]


def first(net):
    """The separable convolution of the first edge."""
    return net[0]._ops[0]._ops[4]
