"""A patched network whose own call is replayed, with the numbers of a run; or the reason why it isn't."""

import copy
import gc
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from nxcore import nas
from nxcore.graphs.capture import Capture
from nxcore.graphs.part import SETTLED
from nxcore.measure import collection
from nxcore.nas import whole
from nxcore.nas.watch import PART
from tests.nas import darts
from tests.nas.switches import switch
from tests.nas.test_replays import agree, taped
from tests.table import for_each

pytestmark = pytest.mark.usefixtures("decided", "taken")


@pytest.fixture
def taken(monkeypatch):
    """Networks are taken, as by default."""
    switch(monkeypatch, whole, on=True)


def captured(make=darts.Network):
    """Return a network, and a patched copy after its capture, with its tape."""
    torch.manual_seed(0)
    plain = make().double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, watch=False)
    tape = taped(patched)
    agree(plain, patched, SETTLED)
    return plain, patched, tape


def replayed(make=darts.Network):
    """Return the same; the copy is replayed whole."""
    plain, patched, tape = captured(make)
    assert nas.replays(patched)[""].startswith("replays"), nas.replays(patched)
    return plain, patched, tape


def test_a_network_is_replayed_whole_and_not_its_cells():
    plain, patched, tape = replayed()
    before = tape.replayed
    agree(plain, patched, 2)
    assert (tape.captured, tape.replayed) == (2, before + 2 * 2)
    assert not any("replays" in state for name, state in nas.replays(patched).items() if name)
    other = copy.deepcopy(patched)
    assert nas.replays(other)[""] == "runs: no call in training yet"
    assert vars(other.cells[0])[PART].outer is vars(other)[PART]
    nas.unpatch(patched)
    assert type(patched) is darts.Network
    assert nas.replays(patched) == {}
    agree(plain, patched, 1)


def test_a_capture_lets_all_garbage_be_collected_once(monkeypatch):
    looks, tried = [], Capture._tried
    monkeypatch.setattr(Capture, "_tried", lambda *args: (looks.append(gc.get_threshold()), tried(*args))[1])
    replayed()
    assert [at[2] for at in looks] == [collection.NEVER]
    assert gc.get_threshold()[2] < collection.NEVER


class Other(nn.Conv2d):
    """Somebody's own layer."""


def hook(net):
    net.cells[1].preprocess1.op[2].register_forward_hook(lambda module, args, out: 1.5 * out)


def layer(net):
    net.cells[1].preprocess1.op[1].__class__ = Other


def weight(net):
    conv = net.cells[0].preprocess1.op[1]
    conv.weight = nn.Parameter(conv.weight.detach() * 2)


def moved(net):
    conv = net.cells[0].preprocess1.op[1]
    conv.weight.data = conv.weight.data.clone() * 2


def momentum(net):
    net.stem[1].register_buffer("running_mean", net.stem[1].running_mean.clone() + 1)


def frozen(net):
    net.classifier.weight.requires_grad_(False).requires_grad_(True)
    net.cells[2].eval()


@pytest.mark.slow
@pytest.mark.parametrize("change", [hook, layer, weight, moved, momentum, frozen])
def test_a_changed_network_runs_and_its_statistics_are_those_of_one_call(change):
    plain, patched, _ = replayed()
    for net in (plain, patched):
        change(net)
    whole_part = vars(patched)[PART]
    captures = [c for found in whole_part._captures.values() for c in found]
    undone = []
    for found in captures:
        undo = found._recorded.undo
        found._recorded.undo = lambda undo=undo: (undone.append(1), undo())
    agree(plain, patched, 1)
    assert undone == [1]
    agree(plain, patched, SETTLED)


@pytest.mark.slow
def test_a_shallow_copy_runs():
    plain, patched, tape = replayed()
    before, other = tape.replayed, copy.copy(patched)
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.rand(2, 5, 8).double()
    torch.testing.assert_close(other(x, *logits), plain(x, *logits))
    assert tape.replayed == before
    agree(plain, patched, 1)
    assert tape.replayed == before + 2


@pytest.mark.slow
def test_a_frozen_parameter_is_noticed():
    plain, patched, _ = replayed()
    for net in (plain, patched):
        net.classifier.weight.requires_grad_(False)
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.rand(2, 5, 8).double().requires_grad_()
    for net in (plain, patched):
        net.zero_grad(set_to_none=True)
        net(x, *logits.unbind(0)).square().sum().backward()
        assert net.classifier.weight.grad is None
        assert net.classifier.bias.grad is not None
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    torch.testing.assert_close(patched.classifier.bias.grad, plain.classifier.bias.grad)


@pytest.mark.slow
def test_evaluation_runs():
    plain, patched, tape = replayed()
    before = tape.replayed
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.rand(2, 5, 8).double()
    torch.testing.assert_close(patched.eval()(x, *logits), plain.eval()(x, *logits))
    assert tape.replayed == before
    agree(plain.train(), patched.train(), 1)


class Own(darts.Network):
    """Keeps its architecture's weights as attributes, as DARTS' code does."""

    def __init__(self):
        super().__init__()
        self.alphas = [torch.randn(5, 8).double().requires_grad_() for _ in range(2)]
        self.alphas_normal, self.alphas_reduce = self.alphas

    def forward(self, x):
        s0 = s1 = self.stem(x)
        for i, cell in enumerate(self.cells):
            weights = functional.softmax(self.alphas_reduce if cell.reduction else self.alphas_normal, dim=-1)
            s0, s1 = s1, cell(s0, s1, weights if i < len(self.cells) else None)
        out = self.global_pooling(s1)
        return self.classifier(out.view(out.size(0), -1))


def same(plain, patched, times):
    """Hold calls of two networks with attributes against each other."""
    for _ in range(times):
        x, found = torch.randn(2, 3, 8, 8).double(), []
        for net in (plain, patched):
            out = net(x)
            wanted = [net.alphas_normal, net.alphas_reduce, *net.parameters()]
            found.append([out, *torch.autograd.grad(out.square().sum(), wanted)])
        torch.testing.assert_close(*found)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())


@pytest.mark.slow
def test_attributes_that_are_tensors_have_gradients_and_their_values_are_read():
    torch.manual_seed(0)
    plain = Own().double()
    patched = copy.deepcopy(plain)
    nas.patch(patched, watch=False)
    tape = taped(patched)
    same(plain, patched, SETTLED)
    assert nas.replays(patched)[""].startswith("replays"), nas.replays(patched)
    before = tape.replayed
    with torch.no_grad():
        for net in (plain, patched):
            net.alphas_normal.add_(1)
    same(plain, patched, 1)
    assert tape.replayed == before + 2
    for net in (plain, patched):
        net.alphas_reduce = net.alphas_reduce.detach().neg().requires_grad_()
    same(plain, patched, SETTLED + 1)


RATE, NAMES, TABLE = 0.5, ("a", "b"), {"rate": 0.5}


def dropped(x):
    return x * random.random()


class Random(darts.Network):
    def forward(self, x, normal, reduce):
        return super().forward(x, normal, reduce) * random.random()


class Helper(darts.Network):
    def forward(self, x, normal, reduce):
        return dropped(super().forward(x, normal, reduce))


class Table(darts.Network):
    def forward(self, x, normal, reduce):
        return super().forward(x, normal, reduce) * TABLE["rate"]


class Counts(darts.Network):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, normal, reduce):
        self.calls += 1
        return super().forward(x, normal, reduce)


class Settings(darts.Network):
    def __init__(self):
        super().__init__()
        self.settings = SimpleNamespace(rate=0.5)

    def forward(self, x, normal, reduce):
        return super().forward(x, normal, reduce) * self.settings.rate


class OfClass(darts.Network):
    rate = 0.5

    def forward(self, x, normal, reduce):
        return super().forward(x, normal, reduce) * self.rate


class Fetches(darts.Network):
    def forward(self, x, normal, reduce):
        return super().forward(x, normal, reduce) * getattr(self, "scale", 1.0)


class Drops(nn.Module):
    def forward(self, x):
        return x if random.random() < 0.5 else 2 * x


class Within(darts.Network):
    def __init__(self):
        super().__init__()
        self.stem.append(Drops())


@for_each(
    ("make", "why"),
    [
        (Random, "forward reads random, a module"),
        (Helper, "dropped reads random, a module"),
        (Table, "forward reads TABLE, a dict"),
        (Counts, "forward does more than compute: STORE_ATTR calls"),
        (Settings, "its code reads the attribute settings, a SimpleNamespace"),
        (OfClass, "its code reads rate of its class, a float"),
        (Fetches, "forward reads getattr"),
        (Within, "stem.2: forward reads random, a module"),
    ],
)
def test_code_that_may_depend_on_more_is_not_taken(make, why):
    torch.manual_seed(0)
    patched = make().double()
    nas.patch(patched, watch=False)
    assert nas.replays(patched)[""] == f"left as it was: its cells are replayed one by one: {why}"
    assert type(patched) is make
    assert vars(patched.cells[0])[PART].outer is None
    nas.unpatch(patched)
    assert nas.replays(patched) == {}


class Scaled(darts.Network):
    """Reads constants: of its file, of itself, in a list."""

    def __init__(self):
        super().__init__()
        self.rate, self.rates = 0.5, [0.25, 2.0]

    def forward(self, x, normal, reduce):
        return super().forward(x, normal, reduce) * self.rate * self.rates[1] * RATE * len(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["own", "list", "file"])
def test_a_changed_constant_is_read(change, monkeypatch):
    plain, patched, _ = replayed(Scaled)
    for net in (plain, patched):
        if change == "own":
            net.rate = 3.0
        elif change == "list":
            net.rates[1] = 5.0
    if change == "file":
        monkeypatch.setitem(globals(), "RATE", 7.0)
    agree(plain, patched, 2)


def python():
    return random.random()


def host():
    return float(torch.rand(()))


def numpy():
    return float(np.random.rand())


@pytest.mark.parametrize(
    ("draw", "why"),
    [
        (python, "it reads random, a builtin_function_or_method"),
        (host, "CaptureError: it draws random numbers"),
        (numpy, "it reads rand, a method"),
    ],
)
def test_a_cell_that_draws_is_not_captured(draw, why):
    class Draws(darts.Cell):
        def forward(self, s0, s1, weights):
            return super().forward(s0, s1, weights) * draw()

    torch.manual_seed(0)
    patched = darts.Network().double()
    patched.cells[1].__class__ = Draws
    nas.patch(patched, watch=False)
    taped(patched)
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double().requires_grad_()
    found = []
    for _ in range(SETTLED):
        random.seed(0)
        torch.manual_seed(0)
        np.random.seed(0)
        patched(x, *logits.unbind(0)).sum().backward()
        found.append(draw())
    assert nas.replays(patched)[""].endswith(why)
    assert len(set(found)) == 1, "trials put the generators back"


class Pair(darts.Network):
    def forward(self, x, normal, reduce):
        out = super().forward(x, normal, reduce)
        return out, out


@pytest.mark.slow
def test_where_a_network_can_not_be_captured_its_cells_are():
    torch.manual_seed(0)
    patched = Pair().double()
    nas.patch(patched, watch=False)
    taped(patched)
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double().requires_grad_()
    for _ in range(2 * SETTLED + 1):
        patched(x, *logits.unbind(0))[0].sum().backward()
    states = nas.replays(patched)
    assert (
        states[""] == "runs: CaptureError: it must return one plain tensor that needs a gradient, got tuple"
    )
    assert all(states[f"cells.{i}"].startswith("replays") for i in range(3)), states
