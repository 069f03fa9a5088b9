"""Pools computed once a source are the pools of every edge: numbers, gradients, running statistics."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nxcore import nas
from nxcore.graphs.part import MET
from nxcore.nas import audit
from nxcore.nas.shared_pools import shared, sharing
from tests.nas import darts, spaces
from tests.nas.test_network import SMALL


def pools_run(net, *args):
    """Return how often a pool ran in a call of ``net``, and what it answered."""
    count = []
    with torch.no_grad():
        names = [n for n, m in net.named_modules() if isinstance(m, (nn.MaxPool2d, nn.AvgPool2d))]
        for name in names:
            pool = net.get_submodule(name)
            forward = type(pool).forward
            pool.forward = lambda x, p=pool, f=forward: (count.append(1), f(p, x))[1]
        out = net(*args)
        for name in names:
            del net.get_submodule(name).forward
    return len(count), out


def normed(pool=None, **options):
    return nn.Sequential(pool or nn.MaxPool2d(3, 1, 1), nn.BatchNorm2d(2, **{"affine": False, **options}))


ALONE = {
    "affine": normed(affine=True),
    "untracked": normed(track_running_stats=False),
    "cumulative": normed(momentum=None),
    "in eval": normed().eval(),
    "synchronised": nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.SyncBatchNorm(2, affine=False)),
    "a pool alone": nn.MaxPool2d(3, 1, 1),
    "something else": nn.Sequential(nn.Identity(), nn.BatchNorm2d(2, affine=False)),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_isnt_alike_in_training_stays_the_edges_own(name):
    with sharing():
        assert shared(torch.randn(2, 2, 4, 4), ALONE[name]) is None


@pytest.mark.parametrize(
    "other",
    [normed(momentum=0.5), normed(eps=1.0), normed(nn.MaxPool2d(5, 1, 2)), normed(nn.AvgPool2d(3, 1, 1))],
)
def test_what_differs_isnt_shared(other):
    x = torch.randn(2, 2, 4, 4)
    with sharing():
        one, differs, same = (shared(x, op) for op in (normed(), other, normed()))
    assert one.untyped_storage().data_ptr() == same.untyped_storage().data_ptr()
    assert one.untyped_storage().data_ptr() != differs.untyped_storage().data_ptr()


def test_a_network_shares_pools_in_training_and_where_its_cells_are_computed_again(monkeypatch):
    monkeypatch.setattr(audit, "FIRST", 1000)  # a repeated call has pools of its own
    torch.manual_seed(0)
    x, logits = torch.randn(2, 3, 8, 8), torch.zeros(2, 5, 8)
    for options in ({}, {"checkpoint": True}):
        net = nas.SearchNetwork(**SMALL, **options)
        assert pools_run(net, x, *logits)[0] == 3 * 2 * 3, "a cell of two nodes has three states with readers"
        assert pools_run(net.eval(), x, *logits)[0] == 3 * 2 * 5


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (lambda: darts.Cell(3, 6, 6, 4, False, False), 4),
        (lambda: darts.Cell(3, 6, 6, 4, True, False), 4),
        (lambda: spaces.Nested(6), 3),
    ],
)
@pytest.mark.usefixtures("decided")
@pytest.mark.parametrize("graphs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_patched_cell_runs_each_pool_once_a_state(make, states, graphs, monkeypatch):
    monkeypatch.setattr(audit, "FIRST", 1000)  # a repeated call has pools of its own
    torch.manual_seed(0)
    plain = nn.Sequential(make()).double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, graphs=graphs, watch=False)
    for _ in range(2 * MET + 2 if graphs else 3):  # on a CPU cells, then edges find that there are no graphs
        s0, s1 = (torch.randn(2, 6, 8, 8).double().requires_grad_() for _ in range(2))
        weights = torch.rand(9, 8 if states == 4 else 5).double().requires_grad_()
        found = []
        for net in (patched, plain):
            net.zero_grad()
            out = net[0](s0, s1, weights)
            wanted = [s0, s1, weights, *net.parameters()]
            found.append([out, *torch.autograd.grad(out.square().sum(), wanted)])
        torch.testing.assert_close(*found)
        torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    args = s0, s1, weights
    kinds = 2 if states == 4 else 1
    assert pools_run(patched[0], *args)[0] == kinds * states
    edges = 9 if states == 4 else 5
    assert pools_run(plain[0], *args)[0] == kinds * edges
    patched.eval()
    plain.eval()
    count, out = pools_run(patched[0], *args)
    assert count == kinds * edges, "in evaluation each edge has its own statistics"
    torch.testing.assert_close(out, pools_run(plain[0], *args)[1])


@pytest.mark.parametrize("reentrant", [False, True])
def test_edges_that_are_computed_again_share_nothing(reentrant):
    class Checked(darts.Cell):
        def forward(self, s0, s1, weights):
            states, edge = [self.preprocess0(s0), self.preprocess1(s1)], 0
            for _ in range(self.steps):
                into = []
                for j, x in enumerate(states):
                    op, row = self._ops[edge], weights[edge]
                    again = (edge + j) % 2 == 0
                    into.append(checkpoint(op, x, row, use_reentrant=reentrant) if again else op(x, row))
                    edge += 1
                states.append(sum(into))
            return torch.cat(states[2:], 1)

    torch.manual_seed(0)
    plain = nn.Sequential(Checked(2, 6, 6, 4, False, False)).double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, graphs=False, watch=False)
    s0, s1 = (torch.randn(2, 6, 8, 8).double().requires_grad_() for _ in range(2))
    weights, found = torch.rand(5, 8).double().requires_grad_(), []
    for net in (patched, plain):
        for t in (s0, s1, weights):
            t.grad = None
        net[0](s0, s1, weights).square().sum().backward()
        found.append([t.grad for t in (s0, s1, weights, *net.parameters())])
    torch.testing.assert_close(*found)


def test_an_output_that_code_writes_into_is_not_that_of_other_edges():
    class Scaled(spaces.Nested):
        factor = 1.0

        def forward(self, s0, s1, weights):
            states, edge = [s0, s1], 0
            for node in self.nodes:
                into = []
                for x, ops in zip(states, node, strict=True):
                    outputs = [op(x) for op in ops]
                    if self.factor != 1.0:
                        outputs[1].mul_(self.factor)
                    into.append(sum(w * y for w, y in zip(weights[edge], outputs, strict=True)))
                    edge += 1
                states.append(sum(into))
            return torch.cat(states[2:], 1)

    torch.manual_seed(0)
    plain = nn.Sequential(Scaled(6)).double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, graphs=False, watch=False)
    for turn in range(4):
        s0, s1 = (torch.randn(2, 6, 8, 8).double() for _ in range(2))
        weights = torch.rand(5, 5).double()
        plain[0].factor = patched[0].factor = 1.0 if turn < 2 else 0.5
        torch.testing.assert_close(patched[0](s0, s1, weights), plain[0](s0, s1, weights))
