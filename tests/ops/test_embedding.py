"""What is true of embedding alone, on every backend."""

import pytest
import torch
from torch.nn import functional

import nxcore
from nxcore.errors import InvalidInputError
from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


@every_backend
@pytest.mark.parametrize("settings", [{}, {"padding_idx": -2}, {"scale_grad_by_freq": True}])
def test_rows_and_gradients_are_torchs(
    backend: str | None, device: torch.device, settings: dict[str, object]
) -> None:
    """The gradient is that of embedding_dense_backward, by whichever backend has it."""
    index = torch.randint(9, (3, 50), device=device)
    weight = torch.randn(9, 13, device=device, requires_grad=True)
    found = operator("embedding", backend)(index, weight.detach(), **settings)
    want = functional.embedding(index, weight, **settings)
    assert torch.equal(found, want)
    grad = torch.randn_like(want)
    mine = nxcore.ops.embedding(index, weight, **settings)
    for a, b in zip(*(torch.autograd.grad(y, weight, grad) for y in (mine, want)), strict=True):
        torch.testing.assert_close(a, b)


@every_backend
def test_an_index_may_have_any_shape(backend: str | None, device: torch.device) -> None:
    weight = torch.randn(7, 24, device=device).bfloat16()
    for index in (torch.tensor(6, device=device), torch.arange(6, device=device).view(1, 2, 3, 1).int()):
        found = operator("embedding", backend)(index, weight)
        assert torch.equal(found, weight[index.long()])


def test_what_torch_alone_does_is_refused_with_a_reason(device: torch.device) -> None:
    index, weight = torch.arange(3, device=device), torch.randn(4, 5, device=device)
    for settings, reason in (({"max_norm": 1.0}, "writes to weight"), ({"sparse": True}, "dense")):
        with pytest.raises(InvalidInputError, match=reason):
            nxcore.ops.embedding(index, weight, **settings)


def test_an_index_that_there_is_not_is_torchs_error() -> None:
    with pytest.raises(IndexError):
        nxcore.ops.embedding(torch.tensor([4]), torch.randn(4, 5))
