"""Cells whose own code weights and adds up their operations: taken if a trial agrees, else what they were."""

import copy

import pytest
import torch
from torch import nn

from nxcore import nas
from nxcore.errors import FOREIGN
from nxcore.graphs.part import MET
from nxcore.nas.lists import WRITES, ZEROS
from tests.nas import darts, spaces
from tests.nas.spaces import EDGES, NAMES, NODES
from tests.nas.test_replays import launches, taped

pytestmark = pytest.mark.usefixtures("decided")

MANY = len(NAMES)
FORMS = {
    "dictionary": (spaces.Dictionary, lambda: [torch.rand(EDGES, MANY)]),
    "nested": (spaces.Nested, lambda: [torch.rand(EDGES, MANY)]),
    "rows": (spaces.Rows, lambda: [torch.rand(MANY) for _ in range(EDGES)]),
    "numbers": (spaces.Numbers, lambda: [torch.rand(()) for _ in range(EDGES * MANY)]),
    "unused": (spaces.Unused, lambda: [torch.rand(EDGES, MANY + 1)]),
    "named": (spaces.Named, lambda: [torch.rand(EDGES, MANY)]),
    "alphas": (spaces.Alphas, list),
}


def networks(make, **how):
    torch.manual_seed(0)
    plain = spaces.Net(make).double()
    patched = copy.deepcopy(plain)
    return plain, patched, nas.patch(patched, **how)


def outcome(net, x, weights):
    leaves = [w.double().requires_grad_() for w in weights]
    net.zero_grad()
    given = leaves if len(leaves) < 2 else [leaves]
    scores = net(x, *given)
    scores.square().sum().backward()
    return [scores.detach(), *(w.grad for w in leaves), *(p.grad for p in net.parameters())]


def agree(plain, patched, draw, times):
    for _ in range(times):
        x, weights = torch.randn(3, 3, 8, 8).double(), [w.detach().clone() for w in draw()]
        for got, want in zip(outcome(patched, x, weights), outcome(plain, x, weights), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())


@pytest.fixture
def summed(monkeypatch):
    """Counts the tensors of each weighted sum."""
    counts = []
    from nxcore.nas import pending

    op = pending.session.default().op
    monkeypatch.setattr(pending, "_blended", lambda xs, w: counts.append(len(xs)) or op("weighted_sum")(xs, w))
    return counts


@pytest.mark.parametrize("form", FORMS)
def test_a_cell_of_another_form_is_taken_and_gives_the_same(form, summed):
    make, draw = FORMS[form]
    plain, patched, swap = networks(make)
    classes = {name: type(m) for name, m in plain.named_modules()}
    agree(plain, patched, draw, 2)
    assert {name: swap.replaced[name] for name in ("cells.0", "cells.1")} == {
        f"cells.{i}": make.__name__ for i in range(2)
    }
    held = [name for name, kind in swap.replaced.items() if kind in ("ModuleList", "ModuleDict")]
    assert len(held) == 2 * EDGES
    assert set(nas.replays(patched).values()) == {"runs: no call in training yet"}
    summed.clear()
    agree(plain, patched, draw, 1)
    assert summed == [MANY - 1] * 2 * EDGES, "one sum an edge, without the operation that returns zeros"
    assert all(s == f"runs: met 1 of {MET} times" for s in nas.replays(patched).values())
    back = nas.unpatch(patched)
    assert back.replaced == swap.replaced
    assert {name: type(m) for name, m in patched.named_modules()} == classes
    assert not [n for m in patched.modules() for n in vars(m) if n.startswith("_nxcore")]
    agree(plain, patched, draw, 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_taken_cell_in_evaluation_and_without_gradients(form):
    make, draw = FORMS[form]
    plain, patched, _ = networks(make, graphs=False)
    agree(plain, patched, draw, 2)
    assert nas.replays(patched) == {}
    plain.eval()
    patched.eval()
    agree(plain, patched, draw, 1)
    with torch.no_grad():
        weights = [w.detach().double() for w in draw()]
        given, x = weights if len(weights) < 2 else [weights], torch.randn(3, 3, 8, 8).double()
        torch.testing.assert_close(patched(x, *given), plain(x, *given))
