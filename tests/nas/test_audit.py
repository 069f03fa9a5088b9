"""Taken modules are compared with their own forward, without effects, at a rate that falls; or given back."""

import copy
import functools
from collections import Counter

import pytest
import torch
from torch import nn

import nxcore
from nxcore import nas
from nxcore.context import KernelWarning
from nxcore.graphs.part import MET
from nxcore.nas import audit, comparison, proof
from nxcore.nas.audit import FIRST, SELDOM, Count
from nxcore.nas.reading import Reads, Unclear
from nxcore.nas.watch import AUDIT
from tests.nas import darts, spaces
from tests.nas.test_lists import FORMS, agree
from tests.nas.test_network import step
from tests.nas.test_replays import taped
from tests.table import for_each
from tests.waits import waits


class Seven(darts.MixedOp):
    """Returns something else for seven images."""

    def forward(self, x, weights):
        out = super().forward(x, weights)
        return out * 2 if x.shape[0] == 7 else out


def trust(monkeypatch):
    """Let any code count as shown to be a weighted sum."""

    def sums(module, holder, length, reads, *, listed=False):
        if length > len(holder):
            raise Unclear("too many weights")

    monkeypatch.setattr(proof, "sums", sums)


def pair(make):
    torch.manual_seed(0)
    plain = nn.Sequential(make(4, 1)).double()
    patched = copy.deepcopy(plain)
    return plain, patched, nas.patch(patched, graphs=False, watch=False)


def given(images=2):
    return torch.randn(images, 4, 6, 6).double(), torch.rand(8).double().requires_grad_()


def test_a_difference_gives_the_module_back_and_says_so(monkeypatch):
    trust(monkeypatch)
    plain, patched, swap = pair(Seven)
    assert swap.replaced["0"] == "Seven"
    for _ in range(FIRST - 1):
        patched[0](*given(7))
    args = given(7)
    with pytest.warns(KernelWarning, match="gave 0 back: a trial call returned another result or gradient"):
        found = patched[0](*args)
    plain.load_state_dict(patched.state_dict())
    torch.testing.assert_close(found, plain[0](*args))
    assert type(patched[0]) is Seven
    assert "0" not in swap.replaced
    why = "a trial call returned another result or gradient: its own forward runs from now on"
    assert swap.left["0"] == why
    assert nas.replays(patched) == {"0": f"left as it was: {why}"}


def test_one_difference_counts_for_all_modules_that_share_the_code(monkeypatch):
    trust(monkeypatch)
    model = nn.ModuleList([Seven(4, 1), Seven(4, 1)]).double()
    swap = nas.patch(model, graphs=False, watch=False)
    for _ in range(FIRST - 1):
        model[0](*given(7))
    with pytest.warns(KernelWarning):
        model[0](*given(7))
    model[1](*given(7))
    assert type(model[1]) is Seven
    assert set(swap.left) >= {"0", "1"}


def test_a_repeated_call_has_no_effects(monkeypatch):
    plain, patched, _ = pair(darts.MixedOp)
    for net in (plain, patched):
        net[0]._ops[3] = nn.Dropout(0.3)
    repeated, compare = [], audit.difference
    monkeypatch.setattr(audit, "difference", lambda *how: repeated.append(1) or compare(*how))
    seen = []
    patched[0]._ops[4].register_forward_hook(lambda *_: seen.append(1))
    for _ in range(2 * FIRST):
        x, weights = given()
        torch.manual_seed(1)
        want = plain[0](x, weights)
        state = torch.get_rng_state()
        torch.manual_seed(1)
        torch.testing.assert_close(patched[0](x, weights), want)
        assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    assert len(repeated) == 2
    assert len(seen) == 2 * FIRST


def test_the_rate_falls_to_a_floor():
    count, due = Count(object), []
    while len(due) < 15:
        count.calls = count.due
        due.append(count.calls)
        count.put_off()
    assert due[:4] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert due[-1] - due[-2] == due[-2] - due[-3] == SELDOM


def test_calls_of_this_packages_code_are_not_repeated():
    assert Count(nas.Cell).due == float("inf")
    assert Count(darts.Cell).due == audit.FIRST


def test_modules_of_one_structure_share_their_calls():
    net = darts.Network(4, 3, 3, 2)
    nas.patch(net, graphs=False, watch=False)
    counts = {id(vars(m)[AUDIT].count) for m in net.modules() if type(m).__name__ == "MixedOp"}
    assert len(counts) == 5, "normal cells', and both kinds of edges of each reducing one"


def test_a_pass_of_a_network_repeats_one_call_of_each_structure(monkeypatch):
    net = darts.Network(2, 3, 6, 3)
    nas.patch(net, graphs=False, watch=False)
    counts = Counter(vars(m)[AUDIT].count for m in net.modules() if AUDIT in vars(m))
    assert max(counts.values()) >= 2 * FIRST
    repeated, compare = [], audit.difference
    monkeypatch.setattr(audit, "difference", lambda *how: repeated.append(1) or compare(*how))
    for passes in (1, 2):
        step(net, torch.randn(2, 3, 8, 8), torch.randn(2, 9, 8))
        assert len(repeated) == sum(passes * many >= FIRST for many in counts.values())
        repeated.clear()


def test_results_are_compared_with_one_wait(monkeypatch):
    wanted = [torch.randn(3), None, torch.arange(4), torch.randn(2, 2), torch.zeros(0), torch.tensor(True)]
    agrees = functools.partial(comparison._agree, wanted=wanted)
    assert waits(monkeypatch, lambda: agrees([t if t is None else t.clone() for t in wanted])) == 1
    assert agrees(wanted)
    for i, other in (
        (0, None),
        (1, torch.ones(1)),
        (2, torch.arange(4) + 1),
        (3, torch.full((2, 2), torch.nan)),
    ):
        assert not agrees([*wanted[:i], other, *wanted[i + 1 :]])


def test_a_call_that_is_captured_or_transformed_is_not_repeated():
    _, patched, _ = pair(darts.MixedOp)
    x, weights = given()
    patched[0].eval()
    count = vars(patched[0])[AUDIT].count
    count.calls = count.due - 1
    torch.func.vmap(patched[0], in_dims=(0, None))(x[:, None], weights.detach())
    assert count.calls >= count.due, "the next one is"
    patched[0](x, weights)
    assert count.due > count.calls


class Flagged(spaces.Nested):
    """A cell whose code reads an attribute of its class."""

    twice = False

    def forward(self, s0, s1, weights):
        out = super().forward(s0, s1, weights)
        return out * 2 if Flagged.twice else out


class FlaggedOp(darts.MixedOp):
    twice = False

    def forward(self, x, weights):
        out = super().forward(x, weights)
        return out * 2 if self.twice else out


class Counting(spaces.Nested):
    def forward(self, s0, s1, weights):
        counted()
        return super().forward(s0, s1, weights)


def counted():
    CALLS["calls"] = CALLS.get("calls", 0) + 1


CALLS = {}


@pytest.mark.slow
@pytest.mark.usefixtures("decided")
def test_a_replay_ends_where_its_code_would_read_something_else():
    torch.manual_seed(0)
    draw = FORMS["nested"][1]
    plain = spaces.Net(Flagged).double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, watch=False)
    agree(plain, patched, draw, 2)
    taped(patched)
    agree(plain, patched, draw, MET + 2)
    assert all(state.startswith("replays") for state in nas.replays(patched).values())
    try:
        Flagged.twice = True
        agree(plain, patched, draw, 2)
        states = nas.replays(patched)
        assert set(states.values()) == {"runs: its code reads twice, which changed"}
    finally:
        Flagged.twice = False
    agree(plain, patched, draw, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("decided")
def test_a_replay_ends_where_the_code_of_a_module_inside_would_read_something_else():
    torch.manual_seed(0)
    plain = darts.Network().double()
    for m in plain.modules():
        m.__class__ = FlaggedOp if type(m) is darts.MixedOp else type(m)
    patched = copy.deepcopy(plain)
    nas.patch(patched, watch=False)
    tape = taped(patched)

    def same(times):
        for _ in range(times):
            args = torch.randn(2, 3, 8, 8).double(), *torch.randn(2, 5, 8).double()
            found, want = patched(*args), plain(*args)
            torch.testing.assert_close(found, want)
            for out in (found, want):
                out.square().sum().backward()
        torch.testing.assert_close(patched.state_dict(), plain.state_dict())

    same(MET + 2)
    assert tape.captured
    try:
        FlaggedOp.twice = True
        same(2)
        assert "its code reads twice, which changed" in nas.replays(patched)["cells.0"]
        assert nas.replays(patched)["cells.0._ops.0"] == "left as it was: its code reads twice, which changed"
    finally:
        FlaggedOp.twice = False
    same(2)


def test_code_with_effects_is_neither_taken_nor_called_by_a_trial():
    torch.manual_seed(0)
    draw = FORMS["nested"][1]
    plain = spaces.Net(Counting).double()
    patched = copy.deepcopy(plain)
    swap = nas.patch(patched, watch=False)
    CALLS.clear()
    agree(plain, patched, draw, 4)
    assert CALLS["calls"] == 2 * 2 * 4
    assert swap.left["cells.0"] == "counted does more than compute: STORE_SUBSCR"


@for_each(
    ("body", "why"),
    [
        ("return sum(w * op(x) for w, op in zip(ws, self._ops)) * FACTOR[0]", "computes with a int"),
        ("self.last = x\n  return sum(w * op(x) for w, op in zip(ws, self._ops))", "STORE_ATTR last"),
        ("return sum(w * op(x) for w, op in zip(ws, self._ops)) if ws.requires_grad else x", "requires_grad"),
        ("return sum(float(w) * op(x) for w, op in zip(ws, self._ops))", "__float__"),
        ("return eval('sum(w * op(x) for w, op in zip(ws, self._ops))')", "eval"),
        ("return [op(x) for op in self._ops][0] * ws[0]", "adds up something else"),
        ("return sum(w * op(x + 1) for w, op in zip(ws, self._ops))", "computes with a int"),
        ("return sum(w * w * op(x) for w, op in zip(ws, self._ops))", "adds up something else"),
        ("return sum(w * op(op(x)) for w, op in zip(ws, self._ops))", "adds up something else"),
        ("return tuple(w * op(x) for w, op in zip(ws, self._ops))", "returns more than a tensor"),
        ("return sum(w * op(x) for w, op in zip(ws, OPS))", "it reads OPS, a list"),
        ("return sum(w * op(x) for w, op in zip(ws, type(self)(4, 1)._ops))", "it reads type"),
    ],
)
def test_code_that_is_no_sum_on_symbols_says_why(body, why):
    scope = {"FACTOR": [2], "OPS": [nn.Identity()]}
    exec(f"def forward(self, x, ws):\n  {body}", scope)
    module = type("Mixed", (darts.MixedOp,), {"forward": scope["forward"]})(4, 1)
    with pytest.raises(Unclear, match=why.replace("(", r"\(")):
        proof.sums(module, module._ops, 8, Reads())


def test_a_twin_has_no_hooks():
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_forward_hook(lambda *_: None)
    assert not comparison.twin_of(module)[0]._forward_hooks
    assert module[0]._forward_hooks
    assert nxcore.nas.replays(module) == {}


class Mean(nn.Module):
    """Returns one value a channel for large images."""

    def forward(self, x):
        return x.mean((2, 3), keepdim=True) if x.shape[-1] > 8 else x


ODD = {
    "whole numbers": lambda x, w: (x, (4 * w).int()),
    "a list of whole numbers": lambda x, w: (x, list((4 * w).int())),
    "half weights": lambda x, w: (x, w.half()),
    "a matrix": lambda x, w: (x, w[:, None]),
    "fewer weights": lambda x, w: (x, w[:2]),
    "no image": lambda x, w: (x[:0], w),
    "outputs of two shapes": lambda x, w: (torch.ones(1, 4, 9, 9), w),
}


@for_each("autocast", [False, True])
@for_each("odd", ODD)
def test_odd_arguments_give_what_the_own_forward_does(odd, autocast):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.ops = nn.ModuleList([nn.Conv2d(4, 4, 1), Mean(), darts.Zero(1)])

        def forward(self, x, w):
            return sum(a * f(x) for a, f in zip(w, self.ops))  # noqa: B905  as published code has it

    torch.manual_seed(0)
    plain = nn.Sequential(Mixed())
    patched = copy.deepcopy(plain)
    assert "0" in nas.patch(patched, graphs=False, watch=False).replaced
    x, w = ODD[odd](torch.randn(2, 4, 6, 6), torch.rand(3))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        want, found = plain[0](x, w), patched[0](x, w)
    torch.testing.assert_close(found, want, rtol=2e-2 if autocast else 1e-5, atol=2e-2 if autocast else 1e-6)
