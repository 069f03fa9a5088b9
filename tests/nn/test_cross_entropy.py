"""nxcore.nn.CrossEntropyLoss where a model holds it: what an operator takes, and what torch keeps."""

import copy

import pytest
import torch
from torch import Tensor, nn

import nxcore
from tests.nn.cross_entropy import targeted


class Classifier(nn.Module):
    """Logits, and their loss."""

    def __init__(self, **settings) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(6, 5), nn.CrossEntropyLoss(**settings)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.head(x), target)


SETTINGS = [{}, {"weight": torch.linspace(0.5, 2, 5), "reduction": "sum"}, {"ignore_index": 1}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_models_loss_is_torchs_and_by_the_operator(settings, ran) -> None:
    torch.manual_seed(0)
    plain = Classifier(**settings)
    ours, x = copy.deepcopy(plain), torch.randn(7, 6)
    assert nxcore.accelerate(ours, watch=False).replaced == {"loss": "CrossEntropyLoss"}
    for model in (plain, ours):
        model(x, torch.arange(7) % 5).backward()
    torch.testing.assert_close(ours.head.weight.grad, plain.head.weight.grad)
    assert {"cross_entropy", "cross_entropy_backward"} <= set(ran)
    nxcore.restore(ours)
    assert type(ours.loss) is nn.CrossEntropyLoss


def test_probabilities_are_torchs(ran) -> None:
    x, target = torch.randn(7, 5), torch.rand(7, 5).softmax(1)
    found = nxcore.nn.CrossEntropyLoss()(x, target)
    torch.testing.assert_close(found, nn.CrossEntropyLoss()(x, target))
    assert not ran


def test_alone_it_answers_as_torchs(ran) -> None:
    ours, torchs = (targeted(of.CrossEntropyLoss(label_smoothing=0.1)) for of in (nxcore.nn, nn))
    x = torch.randn(2, 4, 9, 11)
    for given in (x, x[0], x.to(memory_format=torch.channels_last)):
        a, b = (given.clone().requires_grad_() for _ in range(2))
        ours(a).backward()
        torchs(b).backward()
        torch.testing.assert_close(a.grad, b.grad)
    assert "cross_entropy" in ran
