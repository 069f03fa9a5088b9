"""What is true of cumsum alone, on every backend."""

import pytest
import torch

from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


@every_backend
def test_whole_numbers_are_exact(backend: str | None, device: torch.device) -> None:
    x = torch.arange(3 * 20_481, device=device).remainder(11).sub(5).float().view(3, -1)
    op = operator("cumsum", backend)
    assert torch.equal(op(x, 1), torch.cumsum(x, 1))
    assert torch.equal(op(x.T, 0), torch.cumsum(x.T, 0))


@every_backend
def test_the_gradient_is_the_sum_from_the_end_on(backend: str | None, device: torch.device) -> None:
    x = torch.zeros(2, 515, 3, device=device, requires_grad=True)
    grad = torch.arange(2 * 515 * 3, device=device).remainder(7).float().view(2, 515, 3)
    (found,) = torch.autograd.grad(operator("cumsum", backend)(x, 1), x, grad)
    assert torch.equal(found, grad.flip(1).cumsum(1).flip(1))


@every_backend
def test_what_follows_an_infinity(backend: str | None, device: torch.device) -> None:
    x = torch.zeros(70, device=device)
    x[[9, 40]] = torch.tensor([torch.inf, -torch.inf], device=device)
    found = operator("cumsum", backend)(x, 0)
    assert not found[:9].any()
    assert found[9:40].isposinf().all()
    assert found[40:].isnan().all()


def test_halves_are_added_up_in_float32() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    found = operator("cumsum", None)(x, 0)
    assert torch.equal(found, torch.arange(1, 4097).bfloat16())


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float64])
def test_other_dtypes_are_torchs(dtype: torch.dtype) -> None:
    x = torch.ones(3, 5).to(dtype)
    found, want = operator("cumsum", None)(x, 1), torch.cumsum(x, 1)
    assert torch.equal(found, want)
    assert found.dtype is want.dtype
