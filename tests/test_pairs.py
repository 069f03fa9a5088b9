"""Calls with their gradients beside torch's own: ``benchmarks/pairs.py``."""

from __future__ import annotations

import pytest
import torch

from benchmarks import pairs


@pytest.mark.parametrize("name", pairs.PAIRS)
def test_both_sides_of_a_pair_compute_the_same(name):
    theirs, ours, build = pairs.PAIRS[name]
    args = tuple(x[:2].detach().requires_grad_(x.requires_grad) for x in build("cpu"))
    made = torch.randn_like(theirs(*args))
    for torchs, own in zip(*(_both(call, args, made) for call in (theirs, ours)), strict=True):
        torch.testing.assert_close(own, torchs)


def _both(call, args, made):
    out = call(*args)
    return out, *torch.autograd.grad(out, args[0], made)


def test_a_ratio_is_torchs_time_over_nxcores_in_both_orders(monkeypatch):
    order = []

    def seconds_of(call, *_):
        order.append(call)
        return {torch.add: 3e-3, "ours": 2e-3}[call]

    monkeypatch.setattr(pairs, "seconds_of", seconds_of)
    monkeypatch.setitem(pairs.PAIRS, "add", (torch.add, "ours", pairs.two))
    row = pairs.compared("add", "cpu", rounds=2, seconds=0.0)
    assert row["ratios"] == [1.5, 1.5]
    assert order[-4:] == [torch.add, "ours", "ours", torch.add]
    assert pairs.line(row).split() == ["add", "3000.0", "2000.0", "us", "1.500", "[1.500,", "1.500]"]
