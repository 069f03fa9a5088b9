"""The norms that end an edge's operations: computed with their weighted sum, where a captured call may."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nxcore
from nxcore import nas
from nxcore.graphs.late import late
from nxcore.graphs.part import MET
from nxcore.graphs.raw import Raw
from nxcore.nas import blend
from nxcore.nas.watch import PART
from nxcore.nn import modules, sequential
from tests.nas import darts
from tests.nas.switches import switch
from tests.nas.test_replays import launches
from tests.nn.parts import outcome
from tests.nn.tape import Tape
from tests.stand_ins import stand_in

blend_has = stand_in(blend)

pytestmark = pytest.mark.usefixtures("decided")

NORMED = 4  # operations of an edge that end with a norm, besides pools


@pytest.fixture
def summed(monkeypatch, blend_has):
    """The operators serve all norms, as kernels do; the numbers of norms of each sum."""
    found = []

    def by_kernel(xs, weights, normed, eps):
        found.append(sum(normed))
        return nxcore.op("batch_norm_sum")(xs, weights, normed, eps)

    switch(monkeypatch, blend, on=True)
    monkeypatch.setattr(modules, "by_kernel", lambda module, operator, *args: operator(*args))
    monkeypatch.setattr(sequential, "_sep_conv2d", SimpleNamespace(by_kernel=nxcore.op("sep_conv2d").run))
    blend_has(_sum=lambda: SimpleNamespace(by_kernel=by_kernel))
    return found


def edge(stride=1, changed=lambda mixed: None):
    torch.manual_seed(0)
    plain = darts.MixedOp(4, stride).double()
    changed(plain)
    patched = nn.Sequential(copy.deepcopy(plain))
    assert nas.patch(patched).replaced["0"] == "MixedOp"
    return plain, patched[0]


def same(plain, patched):
    x, weights = torch.randn(2, 4, 6, 6).double(), torch.rand(8).double()
    with late():
        got = outcome(patched, x, weights)
    for one, want in zip(got, outcome(plain, x, weights), strict=True):
        torch.testing.assert_close(one, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())


@pytest.mark.parametrize("stride", [1, 2])
def test_an_edge_has_one_sum_of_all_its_norms(summed, stride):
    plain, patched = edge(stride)
    same(plain, patched)
    assert summed == [2 + NORMED + stride - 1], "two pools, and a factorized reduction where the stride is 2"
    nas.unpatch(patched)
    assert not [name for name in vars(patched) if name.startswith("_nxcore")]


def test_calls_that_are_not_captured_have_each_norm_by_itself(summed):
    plain, patched = edge()
    x, weights = torch.randn(2, 4, 6, 6).double(), torch.rand(8).double()
    for got, want in zip(outcome(patched, x, weights), outcome(plain, x, weights), strict=True):
        torch.testing.assert_close(got, want)
    assert summed == []


def relu_behind(mixed):
    mixed._ops[4] = nn.Sequential(mixed._ops[4], nn.ReLU())


def relu_within(mixed):
    class Behind(type(mixed._ops[4])):
        def forward(self, x):
            return torch.relu_(super().forward(x))

    mixed._ops[4].__class__ = Behind


def another_eps(mixed):
    mixed._ops[4].op[-1].eps = 0.1


def watched(mixed):
    mixed._ops[4].op[-1].register_forward_hook(lambda *_: None)


def evaluated(mixed):
    mixed._ops[4].op[-1].eval()


@pytest.mark.parametrize("changed", [relu_behind, relu_within, another_eps])
def test_an_operation_that_ends_otherwise_is_computed_whole(summed, changed):
    plain, patched = edge(changed=changed)
    same(plain, patched)
    assert summed == [2 + NORMED - 1]


@pytest.mark.parametrize("changed", [watched, evaluated])
def test_a_norm_that_changed_since_is_computed_by_itself(summed, changed):
    plain, patched = edge()
    changed(plain)
    changed(patched)
    same(plain, patched)
    assert summed == [2 + NORMED - 1]


def test_where_torch_serves_the_sum_norms_run_and_are_not_left_again(summed, blend_has):
    plain, patched = edge()
    asked = []
    torchs = SimpleNamespace(by_kernel=lambda *args: asked.append(args), settled=lambda *args: True)
    blend_has(_sum=lambda: torchs)
    for _ in range(2):
        same(plain, patched)
    assert len(asked) == 1


def test_an_operation_must_return_what_its_norm_did():
    norm = nxcore.nn.BatchNorm2d(4, affine=False)
    x = torch.randn(2, 4, 3, 3)
    for op in (lambda x: norm(x) + 1, lambda x: norm(x).relu_(), lambda x: norm(norm(x))):
        with pytest.raises(nxcore.errors.CaptureError, match="norm"):
            Raw(op, norm)(x.clone())
    raw = Raw(norm, norm)
    assert raw(x) is x is raw.left
    assert Raw(lambda x: 2 * x, norm)(x).equal(2 * x)


@pytest.mark.slow
def test_a_cell_is_replayed_with_one_sum_a_node(summed):
    torch.manual_seed(0)
    plain = nn.Sequential(darts.Cell(2, 8, 8, 4, True, False)).double()
    patched, tape = copy.deepcopy(plain), Tape()
    nas.patch(patched)
    vars(patched[0])[PART]._record = lambda device: tape
    for _ in range(MET + 2):
        given = [torch.randn(2, 8, 8, 8).double() for _ in range(2)] + [torch.rand(5, 8).double()]
        for got, want in zip(*(outcome(net[0], *given) for net in (patched, plain)), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    assert nas.replays(patched)["0"].startswith("replays")
    state = nas.replays(patched)["0"]
    assert state.endswith(f"; {5 * NORMED + 4} norms are computed with sums of their results")
    edges = [NORMED + 1] * 4 + [NORMED]
    wanted = [sum(edges[:2]), sum(edges[2:])]
    assert summed == wanted * (len(summed) // len(wanted))
    assert launches(tape, "_foreach_lerp_") == 1
