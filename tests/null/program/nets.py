"""Small networks, and their steps."""

import copy

import torch
from torch import nn

from nxcore.program import front

MET = 1
"""Calls of a signature before its recording."""


class Net(nn.Module):
    """A norm with statistics, a dropout, several results, and a loss as transformers' models have it."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.4)
        self.head, self.scale = nn.Linear(6, 3), 1.5

    def forward(self, x, target=None):
        hidden = self.drop(self.norm(self.layer(x)).relu()) * self.scale
        scores = self.head(hidden)
        loss = None if target is None else nn.functional.cross_entropy(scores, target)
        return {"loss": loss, "scores": scores, "hidden": hidden}


def pair(make=Net):
    """Return two equal models."""
    torch.manual_seed(0)
    plain = make()
    return plain, copy.deepcopy(plain)


def loss_of(found):
    if not isinstance(found, dict):
        return found.square().sum()
    return found["scores"].square().sum() if found["loss"] is None else found["loss"]


def step(call, model, x, seed=0, **kwargs):
    """Return results, gradients, statistics and the next random number of a step."""
    torch.manual_seed(seed)
    model.zero_grad()
    found = call(x, **kwargs)
    loss_of(found).backward()
    outs = (
        [t.detach() for t in found.values() if t is not None] if isinstance(found, dict) else [found.detach()]
    )
    return [*outs, *(p.grad for p in model.parameters()), *model.buffers(), torch.rand(1)]


def agree(call, ours, plain, times=1, shape=(5, 4), **kwargs):
    """Compare steps of both models."""
    for seed in range(times):
        x = torch.randn(shape)
        torch.testing.assert_close(step(call, ours, x, seed, **kwargs), step(plain, plain, x, seed, **kwargs))


def replays(model):
    """Return the replays of a model's graphs."""
    return [replay for _, replay in front.replays_of(model)]
