"""Models whose code may do more than compute, which aren't replayed: each says why."""

import copy
import functools
import random

import pytest
import torch
from torch import nn

import nxcore
from tests.nn.tape import MET, part
from tests.nn.test_whole import Net, step

pytestmark = pytest.mark.usefixtures("tape")


def draws(x):
    return x * random.random()


class Random(Net):
    def forward(self, x):
        return draws(super().forward(x))


class Seeded(Net):
    def forward(self, x):
        torch.manual_seed(0)
        return super().forward(x)


class Generated(Net):
    def __init__(self):
        super().__init__()
        self.own = torch.Generator()

    def forward(self, x):
        return super().forward(x) * torch.rand((), generator=self.own)


class Counts(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def patched():
    net = Net()
    net.head.forward = net.head.forward
    return net


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Random, "draws reads random, a module"),
        (Seeded, "its code reads manual_seed"),
        (Generated, "its code reads the attribute own, a Generator"),
        (Counts, "forward does more than compute: STORE_ATTR calls"),
        (patched, "head: its forward is an attribute"),
    ],
)
def test_code_that_may_depend_on_more_is_left_to_dynamo_with_its_numbers(make, why):
    torch.manual_seed(0)
    plain = make()
    ours = copy.deepcopy(plain)
    if make is patched:
        ours.head.forward = functools.partial(nn.Linear.forward, ours.head)  # a copied method is the other's
    assert nxcore.accelerate(ours).replays == f"may be replayed as dynamo's graphs: {why}"
    for seed in range(7):
        random.seed(seed)
        found = step(ours, torch.ones(2, 3, 4, 4), seed)
        random.seed(seed)
        torch.testing.assert_close(found, step(plain, torch.ones(2, 3, 4, 4), seed))
    assert getattr(ours, "calls", 0) == getattr(plain, "calls", 0)
    torch._dynamo.reset()


class Numbered(Net):
    def forward(self, x):
        return super().forward(x), 1


def test_another_result_than_tensors_is_not_replayed():
    ours = Numbered()
    nxcore.accelerate(ours)
    for _ in range(MET + 1):
        ours(torch.randn(2, 3, 4, 4))[0].sum().backward()
    why = "CaptureError: its results must be plain tensors that need a gradient, got int"
    assert part(ours).state == f"runs: {why}"
    assert not part(ours).stands
