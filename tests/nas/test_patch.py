"""Somebody else's network, patched, gives the same numbers; unpatched, it is what it was."""

import torch
from torch import nn

from nxcore import nas
from nxcore import nn as ours
from tests.nas import darts
from tests.nas.test_network import step


class Sampled(darts.MixedOp):
    def forward(self, x, weights):
        return self._ops[int(weights.argmax())](x)


class Broken(darts.MixedOp):
    def forward(self, x, weights):
        raise RuntimeError("no")


def test_a_patched_network_gives_the_same_numbers_and_unpatched_is_what_it_was():
    torch.manual_seed(0)
    plain, patched = darts.Network().double(), darts.Network().double()
    patched.load_state_dict(plain.state_dict())
    classes = {name: type(m) for name, m in patched.named_modules()}
    swap = nas.patch(patched)
    kinds = set(swap.replaced.values())
    layers = {"Conv2d", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "BatchNorm2d", "Sequential"}
    assert kinds == {"Cell", "MixedOp", *layers}
    assert list(swap.replaced.values()).count("MixedOp") == 3 * 5
    assert isinstance(patched.cells[0]._ops[0]._ops[1][0], ours.MaxPool2d)
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double()
    for got, want in zip(step(patched, x, logits), step(plain, x, logits), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    assert not any(name in nas.patch(patched).replaced for name in swap.replaced), "twice is once"
    back = nas.unpatch(patched)
    assert back.replaced == swap.replaced
    assert {name: type(m) for name, m in patched.named_modules()} == classes


def test_what_is_no_weighted_sum_is_left_and_says_so():
    model = nn.ModuleDict({"sampled": Sampled(4, 1), "broken": Broken(4, 1), "mixed": darts.MixedOp(4, 1)})
    before = {k: v.clone() for k, v in model.state_dict().items()}
    swap = nas.patch(model)
    assert "mixed" in swap.replaced
    assert (
        swap.left["sampled"] == "it isn't the weighted sum of its operations: a trial call answered otherwise"
    )
    assert swap.left["broken"] == "a trial call raised RuntimeError: no"
    torch.testing.assert_close(model.state_dict(), before)
