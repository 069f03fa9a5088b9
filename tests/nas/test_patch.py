"""Somebody else's network, patched, gives the same numbers; unpatched, it is what it was."""

import sys

import torch
from torch import nn

from nxcore import nas
from nxcore import nn as ours
from nxcore.nn.exchange import kind, watch_of
from nxcore.nn.groups import Groups
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
    assert kinds == {"Cell", "MixedOp", "Op", "Reduce", *layers}
    assert list(swap.replaced.values()).count("MixedOp") == 3 * 5
    assert isinstance(patched.cells[0]._ops[0]._ops[1][0], ours.MaxPool2d)
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double()
    for got, want in zip(step(patched, x, logits), step(plain, x, logits), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    assert nas.patch(patched).replaced == swap.replaced, "twice is once"
    back = nas.unpatch(patched)
    assert back.replaced == swap.replaced
    assert {name: type(m) for name, m in patched.named_modules()} == classes


def test_what_a_patch_replaced_is_given_back_and_taken_back():
    torch.manual_seed(0)
    plain, patched = darts.Network(), darts.Network()
    patched.load_state_dict(plain.state_dict())
    classes = {name: type(m) for name, m in patched.named_modules()}
    nas.patch(patched, watch=False)
    assert watch_of(patched) is None
    ours, groups = {name: kind(m) for name, m in patched.named_modules()}, Groups()
    found = groups.present(patched)
    assert found == {"Cell", "BatchNorm2d", "AdaptiveAvgPool2d"}, "what lies within a cell is of its group"
    groups.rest(patched, found)
    x, logits = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 8)
    for got, want in zip(step(patched, x, logits), step(plain, x, logits), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    groups.rest(patched, frozenset({"BatchNorm2d"}))
    cell = patched.cells[0]
    assert [kind(m) for m in cell.modules()] == [
        ours[f"cells.0.{name}".rstrip(".")] for name, _ in cell.named_modules()
    ]
    groups.rest(patched, frozenset())
    assert {name: kind(m) for name, m in patched.named_modules()} == ours
    nas.patch(patched)
    watch = watch_of(patched)
    watch._apply(patched, found)
    nas.unpatch(patched)
    assert {name: type(m) for name, m in patched.named_modules()} == classes


def test_what_is_no_weighted_sum_is_left_and_says_so():
    model = nn.ModuleDict({"sampled": Sampled(4, 1), "broken": Broken(4, 1), "mixed": darts.MixedOp(4, 1)})
    before = {k: v.clone() for k, v in model.state_dict().items()}
    swap = nas.patch(model)
    assert "mixed" in swap.replaced
    assert swap.left["sampled"] == "it is not the weighted sum of its operations: it reads argmax of a tensor"
    assert swap.left["broken"] == "it is not the weighted sum of its operations: it raised RuntimeError: no"
    torch.testing.assert_close(model.state_dict(), before)


class Gate(nn.Module):
    """Returns zeros, until somebody opens it."""

    def __init__(self):
        super().__init__()
        self.factor = 0.0

    def forward(self, x):
        return x * self.factor


def seen(module, *args):
    """Return the result of a call, and whether the gate ran in it."""
    ran, before = [], sys.getprofile()
    sys.setprofile(lambda frame, *_: ran.append(1) if frame.f_code is Gate.forward.__code__ else None)
    try:
        return module(*args), bool(ran)
    finally:
        sys.setprofile(before)


def test_what_only_returns_zeros_is_not_run_as_long_as_it_does():
    torch.manual_seed(0)
    mixed = darts.MixedOp(4, 1).double()
    gate = mixed._ops[0] = Gate()
    nas.patch(mixed)
    ops = list(mixed._ops)
    x, weights = torch.randn(2, 4, 6, 6).double(), torch.rand(8).double().requires_grad_()
    out, ran = seen(mixed, x, weights)
    assert not ran
    (gradient,) = torch.autograd.grad(out.square().sum(), weights)
    assert gradient[0] == 0
    assert gradient.count_nonzero() == 7
    for place in (3, 7):  # wherever it stands
        order = [*range(1, place + 1), 0, *range(place + 1, 8)]
        mixed._ops = nn.ModuleList(ops[i] for i in order)
        found, ran = seen(mixed, x, weights[order])
        assert not ran
        torch.testing.assert_close(found, out)
    mixed._ops = nn.ModuleList(ops)
    hook = gate.register_forward_hook(lambda module, args, y: y + 1)
    torch.testing.assert_close(mixed(x, weights), out + weights[0])
    hook.remove()
    gate.factor = 1.0
    found, ran = seen(mixed, x, weights)
    assert ran
    torch.testing.assert_close(found, out + weights[0] * x)
    nas.unpatch(mixed)
    assert "_nxcore_zeros" not in vars(mixed)
