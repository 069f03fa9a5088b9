"""A model that keeps what it computes isn't replayed, and a capture that fails leaves nothing behind."""

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import exchange

pytestmark = pytest.mark.usefixtures("tape")


class Keeps(nn.Module):
    """Keeps its results in a list and a dictionary."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.last = nn.Linear(4, 3), [], {}

    def forward(self, x):
        self.seen.append(torch.relu(self.layer(x)))
        self.last[len(self.seen)] = self.seen[-1]
        return self.seen[-1]


@pytest.mark.parametrize("watch", [True, False])
def test_what_a_model_keeps_is_kept_once(watch):
    model = Keeps()
    nxcore.accelerate(model, watch=watch)
    with nxcore.policy("frozen"):
        results = [model(torch.randn(2, 4)) for _ in range(4)]
        for result in results:
            result.sum().backward()
    assert all(kept is result for kept, result in zip(model.seen, results, strict=True))
    assert [*model.last] == [1, 2, 3, 4]
    assert "it changes a list, dictionary or set" in exchange.watch_of(model).whole.state


def test_a_set_that_stays_is_no_change():
    class Tagged(nn.Sequential):
        def forward(self, x):
            return super().forward(x)

    model = Tagged(nn.Linear(4, 3), nn.ReLU())
    model.tags = set(range(100))
    model.tags -= {*range(100)} - {1, 64}
    assert [*model.tags] != [*model.tags.copy()]
    nxcore.accelerate(model, watch=False)
    with nxcore.policy("frozen"):
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
    part = exchange.watch_of(model).whole
    assert part.captured == 1, part.state
