"""Forwards that deceive a trial: patched, they compute what they always did, whatever a program changes."""

import importlib
import random

import torch
from torch import nn

from nxcore import nas
from nxcore.nn.exchange import PATCHED
from tests.nas import deceiving
from tests.table import for_each

SHAPES = [(2, 8), (3, 7), (1, 8), (5, 8), (2, 8), (2, 5)]


class Net(nn.Module):
    """A mixed operation within a network, whose weights are a parameter."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.mixed, self.head = nn.Conv2d(3, 4, 1), make(), nn.Linear(4, 2)
        self.alpha = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.head(self.mixed(self.stem(x), self.alpha).mean((2, 3)))


def weights(step):
    kinds = ([0.4, 0.3, 0.2, 0.1], [0, 0, 1, 0], [-0.5, 0.2, 0, 0.9], [1e-3, 2e-3, 1e-4, 0.03], [0, 0, 0, 0])
    return torch.tensor(kinds[step % len(kinds)], dtype=torch.float64)


def trained(make, patched):
    """Return all that training with a schedule leaves, step by step."""
    importlib.reload(deceiving)
    net = Net(deceiving.MAKES.get(make, deceiving.Base)).double()
    swap = nas.patch(net, watch=False) if patched else None
    optimizer = torch.optim.SGD([p for n, p in net.named_parameters() if n != "alpha"], 0.05)
    random.seed(0)
    torch.manual_seed(1)
    left = []
    for step in range(20):
        if step in (6, 12):
            net.mixed.set(step == 6)
        net.train(step % 5 != 4)
        with torch.no_grad():
            net.alpha.copy_(weights(step))
        images, side = SHAPES[step % len(SHAPES)]
        x = torch.linspace(-2, 2, images * 3 * side * side, dtype=torch.float64).sin()
        x = x.view(images, 3, side, side).requires_grad_()
        net.zero_grad(set_to_none=True)
        out = net(x)
        out.square().sum().backward()
        left += [out.detach(), x.detach().clone(), x.grad, *(p.grad for p in net.parameters())]
        optimizer.step()
        left += [v.clone() for v in net.state_dict().values()]
        left += [torch.get_rng_state(), torch.tensor([random.random()])]
    return left, swap, net


@for_each("make", deceiving.MAKES)
def test_training_with_a_schedule_leaves_what_plain_does(make):
    wanted, _, _ = trained(make, patched=False)
    found, swap, net = trained(make, patched=True)
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert (got is None) is (want is None)
        if got is not None:
            torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)
    assert ("mixed" in swap.replaced) is hasattr(type(net.mixed), PATCHED), swap
    assert "mixed" in swap.replaced or swap.left["mixed"]


def test_each_deceives():
    """Training leaves something else than with the weighted sum, but for what computes that another way."""
    left = {make: trained(make, patched=False)[0] for make in [*deceiving.MAKES, "Base"]}
    assert {make for make in left if _same(left[make], left["Base"])} == {"Base", "Partially"}


def _same(found, wanted):
    return all(
        (a is None) is (b is None)
        and (a is None or (a.shape == b.shape and torch.allclose(a.double(), b.double())))
        for a, b in zip(found, wanted, strict=True)
    )
