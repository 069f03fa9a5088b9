"""An accelerated model whose steps are replayed, with the numbers of a plain one; or why not."""

import copy
import pickle
import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import nxcore
from nxcore.nn import watching, whole
from nxcore.nn.exchange import kind
from nxcore.nn.groups import REPLAYS, Groups
from nxcore.nn.served import give_back, look, rest
from tests.nn.tape import part
from tests.nn.traced import CALLS
from tests.stand_ins import stand_in

whole_has = stand_in(whole)

pytestmark = pytest.mark.usefixtures("tape")


class Skip(nn.Module):
    """A residual layer that is left out at random, as a user's code has it."""

    def __init__(self, layer, rate):
        super().__init__()
        self.layer, self.rate, self.scale = layer, rate, nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        kept = torch.empty(x.shape[0], 1, 1, 1, device=x.device).bernoulli_(1 - self.rate)
        return x + self.scale * self.layer(x) * kept


class Net(nn.Module):
    """Norms, a dropout, an operation in place, and layers that nxcore has operators for."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(True))
        self.skip = Skip(nn.Conv2d(4, 4, 3, padding=1, groups=4), 0.5)
        self.pool, self.drop, self.head = nn.AvgPool2d(2), nn.Dropout(0.4), nn.Linear(16, 3)

    def forward(self, x):
        x = self.pool(self.skip(self.stem(x)))
        x += 1
        return self.head(self.drop(torch.flatten(x, 1)))


def two(make=Net, **how):
    """Return a plain model and an accelerated one."""
    torch.manual_seed(0)
    plain = make()
    ours = copy.deepcopy(plain)
    nxcore.accelerate(ours, **how)
    return plain, ours


def step(model, x, seed=0):
    """Return result, gradients, statistics and the next random number of a step."""
    torch.manual_seed(seed)
    model.zero_grad()
    out = model(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters()), *model.buffers(), torch.rand(1)]


def agree(plain, ours, times=1, shape=(2, 3, 4, 4)):
    for seed in range(times):
        x = torch.randn(shape)
        torch.testing.assert_close(step(ours, x, seed), step(plain, x, seed))


def captured(make=Net, **how):
    """Return both models after the capture."""
    plain, ours = two(make, **how)
    agree(plain, ours, CALLS)
    assert part(ours).captured == 1, part(ours).state
    return plain, ours


@pytest.mark.parametrize("watch", [True, False])
def test_a_step_is_one_replay_forward_and_one_backward_with_the_numbers_that_it_draws(tape, watch):
    plain, ours = captured(watch=watch)
    assert (before := tape.replayed) > 0
    agree(plain, ours, 3)
    assert (tape.captured, tape.replayed) == (2, before + 3 * 2)
    assert re.match("the model: [0-9]+ operations: replays, 2.0x", watching.report(ours)[-1])


def test_a_gradient_has_the_layout_of_its_parameter():
    def channels_last():
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten()).to(
            memory_format=torch.channels_last
        )

    plain, ours = captured(channels_last)
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    for _ in range(CALLS + 1):
        torch.testing.assert_close(step(ours, x), step(plain, x))
    out = ours(x)
    (gradient,) = torch.autograd.grad(out.sum(), [ours[0].weight])
    assert gradient.stride() == ours[0].weight.stride()


def test_a_module_that_comes_to_rest_or_wakes_changes_nothing(tape):
    plain, ours = captured()
    before = tape.replayed
    for change in (rest, look, give_back):
        change(ours.pool)
        agree(plain, ours)
    assert tape.replayed == before + 3 * 2
    ours.pool = copy.deepcopy(ours.pool)
    agree(plain, ours)
    assert tape.replayed == before + 3 * 2


def twice(model, how):
    """Return what a step of an unusual kind computes."""
    torch.manual_seed(3)
    model.zero_grad()
    x = torch.linspace(-1, 1, 96).view(2, 3, 4, 4).requires_grad_()
    out = model(x)
    if how == "two calls":
        out = out * model(x + 1)
    if how == "created graph":
        (inner,) = torch.autograd.grad(out.square().sum(), [x], create_graph=True)
        inner.square().sum().backward()
    elif how == "retained graph":
        out.sum().backward(retain_graph=True)
        out.square().sum().backward()
    elif how == "accumulated":
        out.sum().backward()
        model(2 * x).sum().backward()
    elif how == "checkpoint":
        checkpoint(model, x, use_reentrant=False).sum().backward()
    elif how == "reentrant checkpoint":
        checkpoint(model, x, use_reentrant=True).sum().backward()
    elif how == "input alone":
        x.grad = torch.autograd.grad(out.sum(), [x])[0]
    else:
        out.sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers(), torch.rand(1)]


WAYS = ["two calls", "created graph", "retained graph", "accumulated", "checkpoint", "reentrant checkpoint"]


@pytest.mark.parametrize("how", [*WAYS, "input alone"])
def test_steps_of_other_kinds_compute_what_plain_ones_do(how):
    plain, ours = captured()
    for _ in range(CALLS):
        torch.testing.assert_close(twice(ours, how), twice(plain, how))
    agree(plain, ours)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(functional.gelu(self.one(x)))


def test_copies_and_restored_models_are_as_before(tape):
    plain, ours = captured()
    before = tape.replayed
    loaded = pickle.loads(pickle.dumps(ours))
    for other in (copy.deepcopy(ours), loaded):
        assert kind(other) is Net
        agree(copy.deepcopy(plain), other)
    assert type(loaded) is Net
    shallow = copy.copy(ours)
    torch.testing.assert_close(step(shallow, torch.ones(2, 3, 4, 4)), step(plain, torch.ones(2, 3, 4, 4)))
    assert tape.replayed == before
    torch.testing.assert_close(ours.state_dict(), plain.state_dict())
    nxcore.restore(ours)
    assert type(ours) is Net
    agree(plain, ours)
    assert tape.replayed == before
    nxcore.accelerate(ours)
    agree(plain, ours, CALLS)
    assert tape.replayed > before


def test_a_model_within_another_one_waits_for_its_capture(tape):
    plain, ours = captured()
    outer, other = nn.Sequential(plain, nn.Linear(3, 2)), nn.Sequential(ours, nn.Linear(3, 2))
    other[1].load_state_dict(outer[1].state_dict())
    nxcore.accelerate(other)
    agree(outer, other, CALLS)
    assert part(other).captured == 1


def test_the_tracer_of_fx_sees_the_model():
    _, ours = two(Tied)
    assert "call_module" in {node.op for node in torch.fx.symbolic_trace(ours).graph.nodes}


def test_a_watch_gives_replays_back_and_they_are_freed(tape):
    plain, ours = captured(watch=False)
    groups = Groups(part(ours))
    assert REPLAYS in groups.present(ours)
    assert REPLAYS not in groups.present(ours.eval())
    ours.train()
    before = tape.replayed
    groups.rest(ours, groups.present(ours))
    agree(plain, ours)
    assert tape.replayed == before
    groups.rest(ours, frozenset())
    agree(plain, ours)
    assert tape.replayed == before + 2
    part(ours).end("the model's steps are faster without it")
    agree(plain, ours)
    assert not part(ours).captured
    assert part(ours).state == "runs: the model's steps are faster without it"
    assert REPLAYS not in groups.present(ours)


def test_where_no_device_has_graphs_a_model_has_no_part(whole_has):
    whole_has(available=lambda: False)
    _, ours = two()
    assert part(ours) is None
    _, ours = two(graphs=False)
    assert part(ours) is None
    whole_has(available=lambda: True, recorder_of=lambda _: None)
    plain, ours = two()
    agree(plain, ours, CALLS)
    assert part(ours).state == "runs: dynamo has made no graph of it"
