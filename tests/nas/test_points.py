"""Operations of a ReLU, 1x1 convolutions and a norm: one operator computes all but the norm, where it can."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nxcore
from nxcore import nas
from nxcore.graphs.late import late
from nxcore.graphs.part import MET
from nxcore.nas import casts, chains, points
from tests.nas import darts
from tests.nas.test_network import step
from tests.nas.test_replays import agree, taped
from tests.nn.parts import outcome
from tests.stand_ins import stand_in
from tests.table import for_each

points_has = stand_in(points)
chains_has = stand_in(chains)


@pytest.fixture
def calls(points_has):
    """The operator serves all calls, as a kernel does: their strides, and whether filters are shifted."""
    found = []

    def by_kernel(x, weight, shifted, stride, relu):
        out = nxcore.op("pointwise_conv2d")(x, weight, shifted, stride, relu=relu)
        found.append((stride, shifted is not None))
        return out

    points_has(_operator=lambda: SimpleNamespace(by_kernel=by_kernel))
    return found


class Held(nn.Module):
    """Holds an operation, as a network does."""

    def __init__(self, op):
        super().__init__()
        self.op = op
        self.others = nn.ModuleList([nn.Identity(), nn.Identity()])

    def forward(self, x):
        return self.op(x * 1)


def same(plain, patched, x):
    for got, want in zip(outcome(patched, x), outcome(plain, x), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())


def pair(op):
    plain = Held(op).double()
    patched = copy.deepcopy(plain)
    return plain, patched, nas.patch(patched, watch=False)


def image(side=8, channels=4):
    torch.manual_seed(1)
    return torch.randn(2, channels, side, side).double()


def test_a_patched_network_computes_them_by_the_operator_and_the_numbers_stay(calls):
    torch.manual_seed(0)
    plain, patched = darts.Network().double(), darts.Network().double()
    patched.load_state_dict(plain.state_dict())
    nas.patch(patched, watch=False)
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double()
    for got, want in zip(step(patched, x, logits), step(plain, x, logits), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    assert calls.count((1, False)) == 2 * 3 - 1, "all inputs of cells but that behind a reduction"
    assert calls.count((2, True)) == 1 + 2 * 4, "that one, and the reductions of both reducing cells' edges"
    calls.clear()
    patched.eval()
    assert step(patched, x, logits)
    assert calls == [], "in evaluation torch serves"


@pytest.mark.parametrize("op", [lambda: darts.entry(4, 3), lambda: darts.Reduce(4, 6)])
def test_an_operation_is_taken_and_given_back(calls, op):
    plain, patched, swap = pair(op())
    assert swap.replaced["op"] == type(plain.op).__name__
    same(plain, patched, image())
    assert len(calls) == 1
    twin = copy.deepcopy(patched)
    outcome(twin, image())
    assert len(calls) == 2, "so is a copy"
    nas.unpatch(patched)
    assert type(patched.op) is type(plain.op)
    outcome(patched, image())
    assert len(calls) == 2


def test_plain_layers_are_taken(calls):
    plain, patched, _ = pair(nn.Sequential(nn.ReLU(), nn.Conv2d(4, 3, 1, 2, bias=False), nn.BatchNorm2d(3)))
    same(plain, patched, image())
    assert calls == [(2, False)]


class Turned(darts.Reduce):
    def forward(self, x):
        x = self.relu(x)
        return self.bn(torch.cat([self.conv_1(x[:, :, 1:, 1:]), self.conv_2(x)], 1))


class Cut(darts.Reduce):
    """The gradient of the first half is lost."""

    def forward(self, x):
        x = self.relu(x)
        return self.bn(torch.cat([self.conv_1(x.detach()), self.conv_2(x[:, :, 1:, 1:])], 1))


def changed(change, op=darts.entry):
    made = op(4, 6)
    change(made)
    return made


OTHERS = {
    "a 3x3 convolution": lambda: changed(
        lambda m: m.op.__setitem__(1, nn.Conv2d(4, 6, 3, padding=1, bias=False))
    ),
    "a bias": lambda: changed(lambda m: m.op.__setitem__(1, nn.Conv2d(4, 6, 1))),
    "padding": lambda: changed(lambda m: m.op.__setitem__(1, nn.Conv2d(4, 6, 1, padding=1, bias=False))),
    "groups": lambda: changed(lambda m: m.op.__setitem__(1, nn.Conv2d(4, 6, 1, groups=2, bias=False))),
    "a ReLU in place": lambda: changed(lambda m: m.op.__setitem__(0, nn.ReLU(inplace=True))),
    "another activation": lambda: changed(lambda m: m.op.__setitem__(0, nn.Tanh())),
    "a hook": lambda: changed(lambda m: m.op[1].register_forward_hook(lambda *_: None)),
    "a buffer of its own": lambda: changed(lambda m: m.op.register_buffer("scale", torch.ones(()))),
    "halves in the other order": lambda: Turned(4, 6),
    "a gradient that is cut off": lambda: Cut(4, 6),
}


@for_each("name", OTHERS)
def test_what_computes_something_else_is_not_taken(calls, name):
    plain, patched, swap = pair(OTHERS[name]())
    assert "op" not in swap.replaced
    same(plain, patched, image())
    assert calls == []


@pytest.mark.parametrize(
    "change",
    [
        lambda op: op.op[2].register_forward_hook(lambda *_: None),
        lambda op: op.op.__setitem__(0, nn.Tanh()),
        lambda op: setattr(op.op[1], "padding", (1, 1)),
        lambda op: op.op[2].eval(),
    ],
)
def test_what_changes_after_it_was_taken_runs_its_own_code(calls, change):
    plain, patched, _ = pair(darts.entry(4, 6))
    change(plain.op)
    change(patched.op)
    same(plain, patched, image())
    assert calls == []


def test_sizes_that_the_operator_does_not_take_raise_torchs_own_message(calls):
    _, patched, _ = pair(darts.Reduce(4, 6))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        patched(image(7))
    assert calls == []


@pytest.mark.parametrize("op", [darts.entry(4, 6), darts.Reduce(4, 6)])
def test_under_autocast_results_and_gradients_are_those_of_the_layers_or_better(calls, op):
    plain = Held(copy.deepcopy(op))
    exact, patched = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    nas.patch(patched, watch=False)
    x = image().float()
    want = outcome(exact, x.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert calls == []
        ran, found = outcome(plain, x), outcome(patched, x)
    assert len(calls) == 1
    assert [t.dtype for t in found] == [t.dtype for t in ran]
    assert found[0].dtype is torch.bfloat16
    for got, by_layers, right in zip(found, ran, want, strict=True):
        off, allowed = (torch.linalg.vector_norm(t.double() - right) for t in (got, by_layers))
        assert off <= 2 * allowed + 1e-6


def test_a_captured_call_under_autocast_casts_both_weights_together(calls, points_has):
    _, patched, _ = pair(darts.Reduce(4, 6))
    cast = []
    points_has(rounded=lambda *args: cast.append(args) or casts.rounded(*args))
    patched, x = patched.float(), image().float()
    with torch.autocast("cpu", torch.bfloat16):
        patched(x)
        assert cast == []
        with late(patched):
            out = patched(x)
    assert out.dtype is torch.bfloat16
    assert [(len(weights), dtype) for weights, dtype in cast] == [(2, torch.bfloat16)]
    out.float().sum().backward()
    assert {weight.grad.dtype for weight in patched.parameters()} == {torch.float32}


def test_torch_serves_with_hooks_on_what_is_saved_and_where_no_kernel_was_chosen(calls, points_has):
    plain, patched, _ = pair(darts.entry(4, 6))
    with torch.autograd.graph.save_on_cpu():
        patched(image())
    assert calls == []
    points_has(_operator=lambda: SimpleNamespace(by_kernel=lambda *_: None))
    plain.load_state_dict(patched.state_dict())
    same(plain, patched, image())


def test_a_captured_call_has_the_same_numbers(calls):
    plain, patched, _ = pair(darts.Reduce(4, 6))
    with late(patched):
        got = outcome(patched, image())
    for one, want in zip(got, outcome(plain, image()), strict=True):
        torch.testing.assert_close(one, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    assert calls == [(2, True)]


@pytest.mark.slow
def test_captured_cells_run_the_operator(calls):
    torch.manual_seed(0)
    plain = darts.Network().double()
    other = copy.deepcopy(plain)
    nas.patch(other, watch=False)
    taped(other)
    agree(plain, other, MET + 2)
    states = nas.replays(other)
    assert all(states[f"cells.{i}"].startswith("replays") for i in range(3))
    assert {(1, False), (2, True)} <= set(calls)


@pytest.mark.parametrize(("agrees", "tried"), [("cpu cuda", ["cpu"]), ("cuda", ["cpu", "cuda"])])
def test_a_trial_is_on_the_cpu_if_the_code_can_run_there(agrees, tried, chains_has):
    seen = []

    def agrees_on(device, *_):
        seen.append(device.type)
        return device.type in agrees

    op = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))]))
    chains_has(_agrees_on=agrees_on)
    assert chains._agrees(op, points.layers_of)
    assert seen == tried
