"""A module twice: run, and by a part of it that a tape captures."""

import torch
from torch import nn

from nxcore.graphs.part import SETTLED
from nxcore.nn import Part
from tests.nn.tape import Tape


class Scaled(nn.Module):
    """Somebody's own module, whose forward reads an attribute."""

    def __init__(self):
        super().__init__()
        self.factor = 2.0

    def forward(self, x):
        return self.factor * x


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False), nn.ReLU(), Scaled())


def blended(module, x, weight):
    return module(x) * weight


def outcome(module, *tensors):
    """Return the result of a call, and the gradients to its tensors and to the module's parameters."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    out = module(*leaves)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [*leaves, *module.parameters()])]


class Pair:
    """The same module twice: run, and by a part of it."""

    def __init__(self, make=layers, run=blended, tape=None):
        self.plain, self.module = make(), make()
        self.tape = tape or Tape()
        self.part = Part(run, lambda device: self.tape)
        self.run = run
        self.weight = torch.tensor(0.7, requires_grad=True)

    def step(self, x, **how):
        """Return result, gradients and state of both."""
        found = []
        for module, call in ((self.plain, self.run), (self.module, self.part)):
            mine = x.clone().requires_grad_()
            out = call(module, mine, self.weight)
            wanted = [mine, self.weight, *module.parameters()]
            grads = torch.autograd.grad(out.square().sum(), wanted, **how)
            found.append([out.detach(), *grads, *(b.clone() for b in module.buffers())])
        return found

    def met(self):
        for _ in range(SETTLED):
            self.agree()

    def agree(self, *shape):
        for got, want in zip(*self.step(torch.randn(*(shape or (2, 3, 5, 5)))), strict=True):
            torch.testing.assert_close(got, want)
