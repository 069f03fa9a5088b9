"""A replayed model with several results: of plain torch's structure, values and gradients."""

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import nxcore
from tests.nn.tape import part
from tests.nn.traced import CALLS
from tests.table import for_each

pytestmark = pytest.mark.usefixtures("tape")


class Pair(NamedTuple):
    logits: torch.Tensor
    aux: torch.Tensor


class Net(nn.Module):
    """A body, and two heads whose results are returned in a structure of its own."""

    def __init__(self, how):
        super().__init__()
        self.how, self.body = how, nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3))
        self.heads = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(2))

    def forward(self, x):
        made = self.body(x)
        first, second = self.heads[0](made), self.heads[1](made)
        if self.how == "dictionary":
            return {"boxes": [first, (second,)], "features": made}
        if self.how == "named":
            return Pair(first, second)
        if self.how == "none":
            return first, None
        if self.how == "list of one":
            return [first + second]
        if self.how == "one tensor":
            return first + second
        if self.how == "half and whole":
            return first.bfloat16(), second.double(), made
        if self.how == "layouts":
            return first.mean(), second.transpose(1, 3), made.contiguous(memory_format=torch.channels_last)
        if self.how == "parts":
            return first.chunk(2, 1)
        if self.how == "one of another":
            return first, first[0]
        if self.how == "its argument":
            return first, x
        if self.how == "its weight":
            return first, self.heads[0].weight
        if self.how == "without gradient":
            return first, second.detach()
        if self.how == "indices":
            return first, second.argmax(1)
        return first, 3


def two(how):
    """Return a plain model and an accelerated one."""
    torch.manual_seed(0)
    plain = Net(how)
    ours = copy.deepcopy(plain)
    nxcore.accelerate(ours)
    return plain, ours


def tensors(result):
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def step(model, x, take=lambda outs: outs):
    """Return the results, gradients, statistics and the next random number of a step from some results."""
    torch.manual_seed(1)
    model.zero_grad()
    x = x.clone().requires_grad_()
    result = model(x)
    sum(t.double().square().sum() for t in take(tensors(result)) if t.requires_grad).backward()
    return [result, x.grad, *(p.grad for p in model.parameters()), *model.buffers(), torch.rand(1)]


def agree(plain, ours, times=1, take=lambda outs: outs, device="cpu", **near):
    for seed in range(times):
        x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(seed)).to(device)
        got, want = step(ours, x, take), step(plain, x, take)
        assert [g is None for g in got] == [w is None for w in want]
        assert pytree.tree_structure(got) == pytree.tree_structure(want)
        for one, other in zip(tensors(got), tensors(want), strict=True):
            torch.testing.assert_close(one, other, **near)
            assert one.stride() == other.stride() or other._is_view()


HOWS = ["dictionary", "named", "none", "list of one", "half and whole", "layouts"]
HOWS += ["without gradient", "indices", "a number", "its argument", "its weight", "parts"]


@for_each("how", HOWS)
def test_a_structure_of_tensors_is_replayed(tape, how):
    torch._dynamo.reset()
    plain, ours = two(how)
    agree(plain, ours, CALLS)
    assert part(ours).captured == 1, part(ours).state
    before = tape.replayed
    agree(plain, ours, 2)
    assert tape.replayed == before + 2 * 2


def test_results_are_tensors_of_their_own():
    plain, ours = two("dictionary")
    agree(plain, ours, CALLS)
    x, found = torch.randn(2, 3, 6, 6), []
    for model in (plain, ours):
        torch.manual_seed(2)
        boxes, (other,) = model(x)["boxes"]
        loss = other.square().sum()  # saves it
        loss = loss + 3 * boxes.mul_(2).sum()  # which isn't changed so
        found.append((boxes, torch.autograd.grad(loss, [*model.parameters()])))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("how", ["half and whole", "one tensor"])
def test_a_run_in_place_of_a_replay_is_under_its_autocast(how):
    plain, ours = two(how)
    x, found = torch.randn(2, 3, 6, 6), []
    for model in (plain, ours):
        for _ in range(CALLS):
            torch.manual_seed(2)
            with torch.autocast("cpu", torch.bfloat16):
                outs = tensors(model(x))
            loss, weights = sum(t.double().pow(3).sum() for t in outs), list(model.parameters())
            first = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        found.append((first, torch.autograd.grad(loss, weights, allow_unused=True)))
    assert part(ours).captured == 1, part(ours).state
    torch.testing.assert_close(*found)


def first(outs):
    return outs[:1]


def test_a_recording_is_of_the_results_that_the_loss_uses(tape):
    plain, ours = two("dictionary")
    agree(plain, ours, CALLS, take=first)
    assert (tape.captured, part(ours).captured) == (2, 1)
    assert ours.heads[1].weight.grad is None
