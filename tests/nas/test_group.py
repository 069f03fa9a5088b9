"""The separable convolutions of all edges that leave a state: computed together in a captured cell."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nxcore
from nxcore import nas
from nxcore.choose.learn import watch
from nxcore.graphs import together
from nxcore.graphs.late import late
from nxcore.graphs.part import MET
from nxcore.nas import blend, group, level
from nxcore.nas.watch import PART
from tests.nas import darts, spaces
from tests.nas.grouped import BACKWARD, COUNTS, FORWARD, cell, cells, first, given, met, same
from tests.nas.switches import switch
from tests.nas.test_replays import launches
from tests.nn.parts import outcome
from tests.nn.tape import Tape
from tests.stand_ins import stand_in

together_has = stand_in(together)
blend_has = stand_in(blend)

pytestmark = pytest.mark.usefixtures("decided")


@pytest.mark.parametrize(
    ("make", "args", "counts"),
    [
        (lambda: darts.Cell(2, 4, 4, 4, False, False), (5, 8), [8, 4, 8, 4, 4, 2]),
        (lambda: darts.Cell(2, 4, 4, 4, True, False), (5, 8), [8, 4, 8, 4, 4, 2]),
        (lambda: spaces.Nested(4), (5, 5), [4, 2, 4, 2, 2]),
    ],
    ids=["normal", "reduction", "lists"],
)
def test_a_cell_computes_the_convolutions_of_a_state_by_a_call_for_each_level(served, make, args, counts):
    plain, patched = cells(make)
    before = given(*args)
    for _ in range(3):  # the first notes what is called, the second is tried, the third is taken
        for got, want in zip(*(outcome(net[0], *before) for net in (patched, plain)), strict=True):
            torch.testing.assert_close(got, want)
    assert served.forward == []
    same(plain, patched, given(*args))
    assert served.forward == counts
    assert sorted(served.backward) == sorted(counts)


def test_running_statistics_have_the_bits_that_they_have_without(served, monkeypatch):
    _, patched = cells(cell)
    other, args = copy.deepcopy(patched), given(5, 8)
    for net in (patched, other):
        outcome(net[0], *args)
    found = {}
    for net, on in ((patched, True), (other, False)):
        switch(monkeypatch, group, on=on)
        with late(net[0]):
            found[on] = outcome(net[0], *args)
    assert served.forward == COUNTS
    assert found[True][0].equal(found[False][0])
    assert all(b.equal(other.state_dict()[n]) for n, b in patched.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("sums", [False, True])
def test_a_replayed_cell_names_its_calls(served, monkeypatch, blend_has, nodes, sums):
    switch(monkeypatch, blend, on=sums)
    by_kernel = SimpleNamespace(by_kernel=nxcore.op("batch_norm_sum"))
    blend_has(_sum=lambda: by_kernel)
    torch.manual_seed(0)
    plain = nn.Sequential(darts.Cell(nodes, 4, 4, 4, True, False)).double()
    patched, tape = copy.deepcopy(plain), Tape()
    nas.patch(patched)
    vars(patched[0])[PART]._record = lambda device: tape
    edges = sum(2 + i for i in range(nodes))
    for _ in range(MET + 2):
        args = given(edges, 8)
        for got, want in zip(*(outcome(net[0], *args) for net in (patched, plain)), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    state = nas.replays(patched)["0"]
    assert state.startswith("replays")
    assert f"; {6 * edges} separable convolutions take {2 * (nodes + 1)} calls" in state
    assert "themselves" not in state
    assert ("norms are computed with sums" in state) is sums
    assert len(served.forward) % (2 * (nodes + 1)) == len(served.backward) % (2 * (nodes + 1)) == 0
    assert launches(tape, "_foreach_lerp_") == 1


@pytest.mark.slow
def test_both_are_on_by_default(served, as_by_default, blend_has):
    blend_has(_sum=lambda: SimpleNamespace(by_kernel=nxcore.op("batch_norm_sum")))
    torch.manual_seed(0)
    net = nn.Sequential(darts.Cell(1, 4, 4, 4, True, False)).double()
    nas.patch(net)
    vars(net[0])[PART]._record = lambda device: Tape()
    for _ in range(MET + 1):
        outcome(net[0], *given(2, 8))
    state = nas.replays(net)["0"]
    assert "; 12 separable convolutions take 4 calls" in state
    assert "norms are computed with sums of their results" in state


def test_second_derivatives_are_those_of_the_plain_cell(served):
    plain, patched = cells(lambda: darts.Cell(1, 4, 4, 4, False, False))
    args = given(2, 8)
    met(plain, patched, args)
    found = []
    for net in (patched, plain):
        leaves = [t.clone().requires_grad_() for t in args]
        with late(net[0]):
            out = net[0](*leaves)
            weight = first(net).op[1].weight
            one = torch.autograd.grad(out.square().sum(), [*leaves, weight], create_graph=True)
            assert served.backward == [], "torch's own functions, which can be differentiated"
            found.append(torch.autograd.grad(sum(g.square().sum() for g in one), [*leaves, weight]))
            served.backward.clear()
    assert served.forward == [4, 2, 4, 2]
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.slow
def test_kernels_have_the_error_of_torch_and_leave_weights_gradients_to_one_sum(monkeypatch, together_has):
    pytest.importorskip("nxcore_cuda")
    device, calls = torch.device("cuda" if torch.cuda.is_available() else "cpu"), []

    def operator(name):
        op = nxcore.op(name, backend="cuda" if name in (FORWARD, BACKWARD) else None)

        def by_kernel(*args):
            calls.append((name, len(args[0])))
            return op.run(*args)

        return SimpleNamespace(by_kernel=by_kernel)

    torch.manual_seed(0)
    plain = nn.Sequential(darts.Cell(1, 2, 2, 2, False, False)).to(device)
    patched, wide = copy.deepcopy(plain), copy.deepcopy(plain).double()
    nas.patch(patched, graphs=False, watch=False)
    switch(monkeypatch, group, on=True)
    monkeypatch.setattr(level, "_operator", operator)
    together_has(_sums=lambda: SimpleNamespace(by_kernel=nxcore.op("column_sums")))
    monkeypatch.setattr(watch, "capturing", lambda problem: True)  # nothing is compared with torch's there
    first, args = ([t.float().to(device) for t in given(2, 8, 2)] for _ in range(2))
    for net in (patched, plain):
        outcome(net[0], *first)
    exact, torchs = outcome(wide[0], *(t.double() for t in args)), outcome(plain[0], *args)
    for captured in (False, True):
        together_has(capturing=lambda shares, captured=captured: captured)
        calls.clear()
        with late(patched[0]) as waiting:
            found = outcome(patched[0], *args)
        assert sorted(calls) == sorted((name, n) for name in (BACKWARD, FORWARD) for n in (2, 2, 4, 4))
        assert waiting.sums.count == (24 if captured else 0)
        for got, own, want in zip(found, torchs, exact, strict=True):
            off, allowed = ((t.double() - want).norm() / want.norm() for t in (got, own))
            assert off <= 2 * allowed + 2e-6
        if not captured:
            torch.testing.assert_close(patched.state_dict(), plain.state_dict())
