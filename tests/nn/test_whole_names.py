"""Arguments of a replayed model that are given by name."""

import copy

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import exchange, whole
from tests.nn.tape import MET, Tape
from tests.stand_ins import stand_in

whole_has = stand_in(whole)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x, scale=None, shift=None):
        out = self.conv(x)
        if scale is not None:
            out = out * scale
        return out if shift is None else out + shift


@pytest.fixture
def nets(whole_has):
    """A plain network, an accelerated one, and what replays it."""
    tape = Tape()
    whole_has(available=lambda: True, recorder_of=lambda _: tape)
    torch.manual_seed(0)
    plain = Net()
    ours = copy.deepcopy(plain)
    with nxcore.policy("frozen"):
        nxcore.accelerate(ours)
        yield plain, ours, tape


def agree(plain, ours, times, *names):
    """Compare steps whose later arguments are given by these names."""
    for _ in range(times):
        given = {"x": torch.randn(2, 3, 5, 5), "scale": torch.randn(1), "shift": torch.randn(1)}
        rest = {name: given.pop(name) for name in names}
        first = given.values()
        for net in (plain, ours):
            net.zero_grad()
            net.found = net(*first, **rest)
            net.found.square().sum().backward()
        torch.testing.assert_close(vars(ours).pop("found"), vars(plain).pop("found"))
        torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])


def test_names_in_any_order_are_replayed_as_the_same_call(nets):
    plain, ours, tape = nets
    agree(plain, ours, MET, "shift")
    assert exchange.watch_of(ours).whole.captured == 1
    before = tape.replayed
    agree(plain, ours, 1, "shift", "scale")
    agree(plain, ours, 1, "scale", "shift")
    agree(plain, ours, 1, "scale", "x", "shift")
    agree(plain, ours, 1)
    assert tape.replayed == before + 4 * 2
    assert tape.captured == 2


def test_a_call_that_leaves_one_out_or_is_hooked_runs(nets):
    plain, ours, tape = nets
    agree(plain, ours, MET, "shift")
    before, x, seen = tape.replayed, torch.randn(2, 3, 5, 5), []
    torch.testing.assert_close(ours(x, shift=x.mean()), plain(x, shift=x.mean()))
    with pytest.raises(TypeError, match="unexpected keyword"):
        ours(x, other=x)
    with pytest.raises(TypeError, match="multiple values"):
        ours(x, x=x)
    ours.register_forward_pre_hook(lambda _, args, kwargs: seen.append({*kwargs}), with_kwargs=True)
    agree(plain, ours, 1, "scale", "shift")
    assert seen == [{"scale", "shift"}]
    assert tape.replayed == before
