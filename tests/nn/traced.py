"""A network, accelerated: its calls are replayed as dynamo's graphs."""

import copy
import dataclasses
import random

import numpy as np
import torch
from torch import nn

import nxcore
from tests.nn.tape import part

CALLS = 5
"""Calls until replays: two by the model, its trace, one of a graph, and the recording."""


@dataclasses.dataclass
class Config:
    factor: float = 2.0


class Net(nn.Module):
    """A norm, a dropout and a layer of its own kind."""

    factor = 2.0

    def __init__(self, use=None):
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.4)
        self.head, self.use, self.own = nn.Linear(6, 3), use, 2.0
        self.items, self.table, self.config = [2.0], {"factor": 2.0}, Config()

    def forward(self, x, *, scale=1.0):
        x = self.drop(self.norm(self.layer(x)).relu()) * scale
        return {"scores": self.head(x if self.use is None else self.use(self, x))}


def step(model, x, seed=0, **kwargs):
    """Return result, gradients, statistics and the next random numbers of a step."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model.zero_grad()
    out = model(x, **kwargs)["scores"]
    out.square().sum().backward()
    grads = [p.grad for p in model.parameters()]
    dice = torch.tensor([random.random(), np.random.random()])
    return [out.detach(), *grads, *model.buffers(), torch.rand(1), dice]


def agree(ours, plain, times=1, shape=(5, 4), **kwargs):
    for seed in range(times):
        x = torch.randn(shape)
        torch.testing.assert_close(step(ours, x, seed, **kwargs), step(plain, x, seed, **kwargs))


def two(use=None, make=Net, **how):
    """Return an accelerated model and a plain one."""
    torch.manual_seed(0)
    plain = make(use)
    ours = copy.deepcopy(plain)
    ours.use = plain.use  # not a copy of a function's variables
    swap = nxcore.accelerate(ours, **how)
    assert swap.replays == "may be replayed as CUDA graphs"
    return ours, plain


def replayed(tape, use=None, **how):
    """Return both models after the first replay."""
    ours, plain = two(use, **how)
    agree(ours, plain, CALLS)
    assert part(ours).captured == 1, part(ours).state
    before = tape.replayed
    agree(ours, plain)
    assert tape.replayed == before + 2
    return ours, plain


def reads(net, x):
    return x * net.own * net.items[0] * net.table["factor"] * net.config.factor
