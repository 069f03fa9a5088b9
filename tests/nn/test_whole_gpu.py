"""An accelerated model whose training steps a GPU replays, with the random numbers of a plain one."""

import copy

import pytest
import torch

import nxcore
from nxcore.nn import watching, whole
from tests.nn.tape import MET, part
from tests.nn.test_whole import Net

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _kept(monkeypatch):
    """A replay is kept whatever it gains: steps of a small model beside other tests take any time."""
    monkeypatch.setattr(whole.ModelWhole, "least", 0.0)


def step(model, x, seed):
    """Return the next random number after a step, its result and its gradients."""
    torch.manual_seed(seed)
    model.zero_grad()
    out = model(x)
    out.square().sum().backward()
    drawn = torch.rand(2, device=x.device)
    return [drawn, out.detach(), *(p.grad.clone() for p in model.parameters()), *model.buffers()]


def agree(plain, ours, x, seed):
    for got, want in zip(step(ours, x, seed), step(plain, x, seed), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)


def test_replays_draw_what_runs_draw_and_leave_the_generator_where_they_do():
    torch.manual_seed(0)
    plain = Net().cuda()
    ours = copy.deepcopy(plain)
    x = torch.randn(2, 3, 4, 4, device="cuda")
    with nxcore.policy("frozen"):
        assert nxcore.accelerate(ours).replays == "may be replayed in training"
        for seed in range(MET + 3):
            agree(plain, ours, x, seed)
        assert watching.report(ours)[-1].startswith("the model: replays"), watching.report(ours)
        for net in (plain, ours):
            net.drop.p = 0.8
        for seed in range(MET + 3):
            agree(plain, ours, x, seed)
        assert part(ours).captured == 1


def test_a_second_backward_pass_draws_what_the_replay_drew():
    torch.manual_seed(0)
    plain = Net().cuda()
    ours = copy.deepcopy(plain)
    x = torch.randn(2, 3, 4, 4, device="cuda", requires_grad=True)
    with nxcore.policy("frozen"):
        nxcore.accelerate(ours)
        for seed in range(MET + 2):
            found = []
            for net in (ours, plain):
                torch.manual_seed(seed)
                out = net(x)
                first = torch.autograd.grad(out.sum(), [x], retain_graph=True)
                found.append([*first, *torch.autograd.grad(out.square().sum(), [x, *net.parameters()])])
            for got, want in zip(*found, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)


def test_what_runs_took_is_returned_after_a_capture():
    device = torch.device("cuda", 0)
    torch.empty(2**24, device=device)
    before = torch.cuda.memory_reserved(device)
    assert whole.kept(device) < before
