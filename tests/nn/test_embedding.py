"""nxcore.nn.Embedding where a model holds it: what an operator takes, and what torch keeps."""

import copy

import pytest
import torch
from torch import Tensor, nn

import nxcore
from tests.nn.embedding import indexed


class Bag(nn.Module):
    """The mean of the rows of some words."""

    def __init__(self, **settings) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 6, **settings), nn.Linear(6, 2)

    def forward(self, index: Tensor) -> Tensor:
        return self.head(self.words(index).mean(1))


@pytest.mark.parametrize("settings", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}], ids=str)
def test_a_models_embedding_is_torchs_and_by_the_operator(settings, ran) -> None:
    torch.manual_seed(0)
    plain = Bag(**settings)
    ours, index = copy.deepcopy(plain), torch.randint(11, (4, 9))
    assert nxcore.accelerate(ours, watch=False).replaced == {"words": "Embedding"}
    for model in (plain, ours):
        model(index).sum().backward()
    torch.testing.assert_close(ours.words.weight.grad, plain.words.weight.grad)
    assert {"embedding", "embedding_backward"} <= set(ran)
    nxcore.restore(ours)
    assert type(ours.words) is nn.Embedding


@pytest.mark.parametrize("settings", [{"max_norm": 1.0}, {"sparse": True}], ids=str)
def test_what_torch_alone_does_is_torchs(settings, ran) -> None:
    """A renormalised weight is written to, as torch writes to it; a sparse gradient stays sparse."""
    plain = nn.Embedding(11, 6, **settings)
    ours, index = copy.deepcopy(plain), torch.randint(11, (4, 9))
    nxcore.accelerate(ours, watch=False)
    for module in (plain, ours):
        module(index).sum().backward()
    torch.testing.assert_close(ours.weight, plain.weight)
    assert ours.weight.grad.is_sparse == plain.weight.grad.is_sparse
    assert not ran


def test_alone_it_answers_as_torchs(ran) -> None:
    torchs = indexed(nn.Embedding(5, 4))
    ours = indexed(nxcore.nn.Embedding(5, 4))
    ours.load_state_dict(torchs.state_dict())
    for given in (x := torch.randn(2, 4, 9), x[0], x.mT):
        assert torch.equal(ours(given), torchs(given))
    assert "embedding" in ran
