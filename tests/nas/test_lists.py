"""Cells whose own code weights and adds up their operations: taken if a trial agrees, else what they were."""

import copy

import pytest
import torch
from torch import nn

import nxcore
from nxcore import nas
from nxcore.graphs.part import MET
from nxcore.nas import pending
from nxcore.nn.exchange import kind
from nxcore.nn.groups import Groups
from tests.nas import darts, spaces
from tests.nas.spaces import EDGES, NAMES
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

    def blended(outputs, weights):
        counts.append(len(outputs))
        return nxcore.op("weighted_sum")(outputs, weights)

    monkeypatch.setattr(pending, "_blended", blended)
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
    assert all(s == "runs: calls so far: 1" for s in nas.replays(patched).values())
    back = nas.unpatch(patched)
    assert back.replaced == swap.replaced
    assert {name: type(m) for name, m in patched.named_modules()} == classes
    assert not [n for m in patched.modules() for n in vars(m) if n.startswith("_nxcore")]
    agree(plain, patched, draw, 1)


@pytest.mark.parametrize("form", ["dictionary", "nested"])
def test_a_taken_cell_that_does_not_pay_is_given_back_and_taken_back(form, summed):
    make, draw = FORMS[form]
    plain, patched, _ = networks(make, watch=False)
    agree(plain, patched, draw, 2)
    groups = Groups()
    found = groups.present(patched)
    assert found > {make.__name__}
    ours = {name: kind(m) for name, m in patched.named_modules()}
    summed.clear()
    groups.rest(patched, found)
    for x in torch.randn(2, 3, 3, 8, 8).double():
        weights = [w.detach().clone() for w in draw()]
        for got, want in zip(outcome(patched, x, weights), outcome(plain, x, weights), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert not summed, "the cell's own code alone ran"
    groups.rest(patched, frozenset())
    assert {name: kind(m) for name, m in patched.named_modules()} == ours
    agree(plain, patched, draw, 1)
    assert summed


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


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dictionary", "nested", "rows", "alphas"])
def test_a_taken_cell_is_replayed(form):
    make, draw = FORMS[form]
    plain, patched, _ = networks(make)
    agree(plain, patched, draw, 2)
    tape = taped(patched)
    agree(plain, patched, draw, MET + 1)
    states = nas.replays(patched)
    assert {n for n, s in states.items() if s.startswith("replays")} == {"cells.0", "cells.1"}, states
    assert tape.captured == 2 * 2
    assert launches(tape, "select_backward") == 0
    rest = 2 * EDGES  # torch's own gradient of a weighted sum stacks the weights'
    assert launches(tape, "aten.stack") == rest + (0 if form == "rows" else 2), "one of all rows' gradients"


class Stacked(spaces.Nested):
    """Stacks outputs, weights them all, and adds them up."""

    def forward(self, s0, s1, weights):
        states, edge = [s0, s1], 0
        for node in self.nodes:
            into = []
            for x, ops in zip(states, node, strict=True):
                outputs = torch.stack([op(x) for op in ops])
                into.append(torch.einsum("k,knchw->nchw", weights[edge], outputs))
                edge += 1
            states.append(sum(into))
        return torch.cat(states[2:], 1)


class Strongest(spaces.Nested):
    """Runs one operation of each edge."""

    def forward(self, s0, s1, weights):
        states, edge = [s0, s1], 0
        for node in self.nodes:
            into = []
            for x, ops in zip(states, node, strict=True):
                k = int(weights[edge].argmax())
                into.append(ops[k](x) * weights[edge][k])
                edge += 1
            states.append(sum(into))
        return torch.cat(states[2:], 1)


class Fickle(spaces.Nested):
    """Counts its calls, and depends on that."""

    calls = 0

    def forward(self, s0, s1, weights):
        self.calls += 1
        return super().forward(s0, s1, weights) * self.calls


class Written(nn.Module):
    """An operation writes into what another one returned."""

    def __init__(self, C):
        super().__init__()
        self.ops = nn.ModuleList([nn.Identity(), nn.ReLU(inplace=True), nn.Conv2d(C, C, 1)])

    def forward(self, s0, s1, weights):
        y = s1 * 2
        return torch.cat(
            [sum(w * op(y) for w, op in zip(weights[0].detach(), self.ops, strict=False)), s0], 1
        )


@pytest.mark.parametrize(
    ("make", "why", "calls"),
    [
        (
            Stacked,
            "it does not add up outputs of its lists, each multiplied by a weight without dimensions",
            2,
        ),
        (Strongest, "none of its lists runs several operations on one tensor", 1),
        (Fickle, "forward does more than compute: STORE_ATTR calls", 1),
        (
            Written,
            "with one operator for its weighted sums, a trial call returned another result or gradient",
            2,
        ),
    ],
)
def test_what_can_not_be_taken_stays_the_very_same_and_says_why(make, why, calls):
    plain, patched, swap = networks(make)
    held = [m for cell in plain.cells for m in cell.modules() if isinstance(m, nn.ModuleList | make)]
    mine = [m for cell in patched.cells for m in cell.modules() if isinstance(m, nn.ModuleList | make)]
    draw = FORMS["nested"][1]
    agree(plain, patched, draw, calls)
    assert [type(m) for m in mine] == [type(m) for m in held]
    assert [set(vars(m)) for m in mine] == [set(vars(m)) for m in held]
    assert swap.left["cells.0"] == swap.left["cells.1"] == why
    assert "cells.0" not in swap.replaced
    assert nas.replays(patched) == {f"cells.{i}": f"left as it was: {why}" for i in range(2)}
    agree(plain, patched, draw, 1)
    nas.unpatch(patched)
    assert nas.replays(patched) == {}


class Dicted(nn.Module):
    """A mixed operation that holds a dictionary, with a weight more than it uses."""

    def __init__(self, C):
        super().__init__()
        self.choices = nn.ModuleDict({name: darts.candidate(name, C, 1) for name in NAMES})

    def forward(self, x, weights):
        return sum(weights[i] * op(x) for i, op in enumerate(self.choices.values()))


def test_a_mixed_operation_may_hold_a_dictionary_and_take_a_list_or_a_weight_too_many():
    torch.manual_seed(0)
    plain = nn.Sequential(Dicted(4)).double()
    patched = copy.deepcopy(plain)
    assert nas.patch(patched).replaced["0"] == "Dicted"
    x, weights = torch.randn(2, 4, 6, 6).double(), torch.rand(MANY + 1).double()
    for given in (weights, weights[:-1], list(weights), [float(w) for w in weights]):
        torch.testing.assert_close(patched[0](x, given), plain[0](x, given))
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    with pytest.raises(IndexError):
        patched[0](x, weights[:2])


def test_a_mixed_operation_on_a_part_of_the_channels_is_taken_at_its_calls():
    torch.manual_seed(0)
    plain = nn.Sequential(spaces.Partial(8)).double()
    patched = copy.deepcopy(plain)
    swap = nas.patch(patched, graphs=False)
    assert swap.left["0"] == "it is not the weighted sum of its operations: it reads shape of a tensor"
    for _ in range(3):
        x, weights = torch.randn(2, 8, 6, 6).double(), torch.rand(MANY).double().requires_grad_()
        found = [m[0](x, weights) for m in (patched, plain)]
        torch.testing.assert_close(*found)
        torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), weights) for y in found))
    assert swap.replaced["0"] == "Partial"
    assert "0" not in swap.left


def test_a_network_of_layers_in_a_list_is_left_at_its_first_call():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Layers()
    swap = nas.patch(model, watch=False)
    with torch.no_grad():
        model(torch.ones(1, 3))
    assert type(model) is Layers
    assert swap.left[""] == "none of its lists runs several operations on one tensor"


def test_a_copy_of_a_taken_cell_is_taken_too():
    make, draw = FORMS["dictionary"]
    plain, patched, _ = networks(make)
    agree(plain, patched, draw, 2)
    other = copy.deepcopy(patched)
    agree(copy.deepcopy(plain), other, draw, 1)


@pytest.mark.slow
def test_a_compiler_sees_a_taken_cell_as_it_is():
    make, draw = FORMS["dictionary"]
    plain, patched, _ = networks(make)
    agree(plain, patched, draw, 2)
    s, weights = torch.randn(2, 4, 8, 8).double(), draw()[0].double()
    want = plain.cells[0](s, s, weights)
    torch.testing.assert_close(patched.cells[0](s, s, weights), want)
    compiled = torch.compile(patched.cells[0], backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(s, s, weights), want)


def test_hooks_of_operations_see_their_outputs():
    make, draw = FORMS["dictionary"]
    plain, patched, _ = networks(make, graphs=False)
    agree(plain, patched, draw, 2)
    for net in (plain, patched):
        net.cells[0].edges["0-2"][2].register_forward_hook(lambda module, args, y: y * 2)
    agree(plain, patched, draw, 1)


def test_the_first_call_reads_no_values(monkeypatch):
    make, draw = FORMS["dictionary"]
    plain, patched, _ = networks(make)
    with monkeypatch.context() as patch:  # a capture or a transform could not
        patch.setattr(torch.Tensor, "any", None)
        agree(plain, patched, draw, 1)
    agree(plain, patched, draw, 2)
    assert all(state.startswith("runs: calls so far") for state in nas.replays(patched).values())
