"""What is true of index_add and embedding_dense_backward alone, on every backend."""

import pytest
import torch

from nxcore.errors import InvalidInputError
from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


@every_backend
def test_a_hundred_runs_have_the_same_bits(backend: str | None, device: torch.device) -> None:
    x, source = torch.randn(40, 6, device=device), torch.randn(700, 6, device=device)
    index = torch.arange(700, device=device).remainder(13)
    torch.use_deterministic_algorithms(True)
    try:
        op = operator("index_add", backend)
        first = op(x, 0, index, source)
        assert all(torch.equal(op(x, 0, index, source), first) for _ in range(99))
    finally:
        torch.use_deterministic_algorithms(False)


@every_backend
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_rows_that_nothing_is_added_to_stay_bit_for_bit(
    name: str, backend: str | None, device: torch.device
) -> None:
    x = torch.randn(50, 8, device=device).to(getattr(torch, name))
    found = operator("index_add", backend)(x, 0, torch.tensor([7, 7], device=device), x[:2])
    rest = [i for i in range(50) if i != 7]
    assert torch.equal(found[rest], x[rest])
    assert not torch.equal(found[7], x[7])


@every_backend
def test_spans_of_one_row_are_added_up_exactly(backend: str | None, device: torch.device) -> None:
    values = torch.arange(5000, device=device).remainder(5).float().view(-1, 1).expand(-1, 12).contiguous()
    index = torch.zeros(5000, dtype=torch.int64, device=device)
    index[:3] = 2
    index[4000:] = 1
    found = operator("index_add", backend)(torch.zeros(3, 12, device=device), 0, index, values)
    assert torch.equal(found[:, 0].cpu(), torch.tensor([7997.0, 2000.0, 3.0]))
    found = operator("embedding_dense_backward", backend)(values, index, 3, 1, False)
    assert torch.equal(found[:, 5].cpu(), torch.tensor([7997.0, 0.0, 3.0]))


def test_halves_are_added_up_in_float32() -> None:
    ones = torch.ones(1000, 1, dtype=torch.bfloat16)
    found = operator("index_add", None)(ones[:1], 0, torch.zeros(999, dtype=torch.int64), ones[1:])
    assert found.item() == 1000


def test_an_index_that_there_is_not_is_torchs_error() -> None:
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        operator("index_add", None)(torch.zeros(3, 2), 0, torch.tensor([3]), torch.zeros(1, 2))


def test_a_gradient_is_that_of_the_embedding() -> None:
    weight, index = torch.randn(7, 5, requires_grad=True), torch.tensor([[1, 4, 1], [0, 6, 6]])
    found = torch.nn.functional.embedding(index, weight, padding_idx=4)
    grad = torch.randn_like(found)
    (want,) = torch.autograd.grad(found, weight, grad)
    torch.testing.assert_close(operator("embedding_dense_backward", None)(grad, index, 7, 4, False), want)
    with pytest.raises(InvalidInputError, match="padding_idx must be an integer from -1"):
        operator("embedding_dense_backward", None)(grad, index, 7, None, False)
