"""Several results of a model whose training steps a GPU replays, and the faster of its two captures."""

import copy

import pytest
import torch

import nxcore
from nxcore.nn.renewal import faster
from nxcore.nn.whole import ModelWhole
from tests.nn.tape import MET, part
from tests.nn.test_whole_results import HOWS, Net, agree, first, tensors
from tests.table import for_each

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _kept(monkeypatch):
    """A replay is kept whatever it gains: steps of a small model beside other tests take any time."""
    monkeypatch.setattr(ModelWhole, "least", 0.0)


def two(how):
    torch.manual_seed(0)
    plain = Net(how).cuda()
    ours = copy.deepcopy(plain)
    nxcore.accelerate(ours)
    return plain, ours


@for_each("how", HOWS)
@for_each("half", [False, True])
def test_a_structure_of_tensors_is_replayed(how, half):
    with nxcore.policy("frozen"), torch.autocast("cuda", torch.bfloat16, enabled=half):
        plain, ours = two(how)
        agree(plain, ours, MET + 3, device="cuda", rtol=3e-2, atol=3e-2)
        assert part(ours).state.startswith("replays"), part(ours).state


def test_a_capture_is_made_again_for_the_results_that_the_loss_uses():
    with nxcore.policy("frozen"):
        plain, ours = two("dictionary")
        agree(plain, ours, MET + 4, take=first, device="cuda", rtol=1e-2, atol=1e-3)
        assert part(ours).state.startswith("replays"), part(ours).state
        assert ours.heads[1].weight.grad is None


def test_two_captures_are_timed_and_nothing_changes():
    with nxcore.policy("frozen"):
        plain, ours = two("named")
        agree(plain, ours, MET + 1, device="cuda", rtol=1e-2, atol=1e-3)
        whole = part(ours)
        (capture,) = next(iter(whole._captures.values()))
        x = torch.randn(2, 3, 6, 6, device="cuda", requires_grad=True)
        before, dice = [b.clone() for b in ours.buffers()], torch.cuda.get_rng_state()
        faster(capture, capture, [x], whole._record(x.device))
        torch.testing.assert_close([*ours.buffers()], before, rtol=0, atol=0)
        assert torch.equal(torch.cuda.get_rng_state(), dice)
        found = []
        for model in (plain, ours):
            torch.manual_seed(3)
            loss = sum(t.float().square().mean() for t in tensors(model(x)))
            if model is ours:  # its replay is still to be differentiated
                faster(capture, capture, [x], whole._record(x.device))
            found.append(torch.autograd.grad(loss, [x, *model.parameters()]))
        torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)
        agree(plain, ours, 1, device="cuda", rtol=1e-2, atol=1e-3)
