"""Cells that are computed again: the same gradients to the bit, running statistics updated once."""

import copy

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from nxcore.nas import Cell, Rule, SearchNetwork

TINY = {"C": 2, "num_classes": 2, "layers": 3, "steps": 1, "multiplier": 1}


def step(net, x, logits):
    """Return the gradients of a step, how often cells ran, and how many numbers were kept for them."""
    ran, kept = [], []
    handles = [
        m.register_forward_pre_hook(lambda *_: ran.append(1)) for m in net.modules() if isinstance(m, Cell)
    ]
    normal, reduce = (row.clone().requires_grad_() for row in logits)
    torch.manual_seed(3)
    with saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
        loss = net(x, normal, reduce).square().sum()
    loss.backward()
    for handle in handles:
        handle.remove()
    return [loss, normal.grad, reduce.grad, *(p.grad for p in net.parameters())], len(ran), sum(kept)


@pytest.mark.parametrize("rule", [Rule(), Rule("sampled")], ids=lambda r: r.mode)
def test_a_checkpointed_network_has_the_same_gradients_and_statistics(rule):
    torch.manual_seed(0)
    plain = SearchNetwork(**TINY, mode=rule).double()
    again = copy.deepcopy(plain)
    again.checkpoint = True
    x, logits = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.randn(2, 2, 8, dtype=torch.float64)
    for _ in range(2):
        (want, once, much), (got, twice, little) = step(plain, x, logits), step(again, x, logits)
        assert (once, twice) == (3, 6)
        assert little < much
        for a, b in zip(got, want, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)
    assert list(again.state_dict()) == list(plain.state_dict())
    for (name, a), b in zip(again.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert int(again.state_dict()["cells.0.preprocess0.op.2.num_batches_tracked"]) == 2
    assert torch.equal(again.choices, plain.choices)


def test_without_gradients_nothing_is_computed_again():
    net = SearchNetwork(**TINY, checkpoint=True).eval()
    with torch.no_grad():
        assert net(torch.randn(2, 3, 8, 8), torch.zeros(2, 8), torch.zeros(2, 8)).shape == (2, 2)


def test_a_computation_that_fails_gives_the_statistics_back():
    net = SearchNetwork(**TINY, checkpoint=True)
    before = dict(net.named_buffers())
    out = net(torch.randn(2, 3, 8, 8), torch.zeros(2, 8), torch.zeros(2, 8))

    def broken(*_):
        raise RuntimeError("no")

    net.cells[0].register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="no"):
        out.sum().backward()
    assert all(before[name] is buffer for name, buffer in net.named_buffers())
