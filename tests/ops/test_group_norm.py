"""What is true of group_norm alone, on every backend."""

import pytest
import torch
from torch.nn import functional

from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


@every_backend
def test_groups_have_no_mean_and_a_variance_of_1(backend: str | None, device: torch.device) -> None:
    x = 1e3 + torch.randn(3, 12, 5, 7, device=device)
    found = operator("group_norm", backend)(x, 4, None, None, 0.0).view(12, -1)
    torch.testing.assert_close(found.mean(1), torch.zeros(12, device=device), rtol=0, atol=2e-3)
    torch.testing.assert_close(found.var(1, correction=0), torch.ones(12, device=device), rtol=0, atol=2e-3)


@every_backend
def test_gradients_are_torchs(backend: str | None, device: torch.device) -> None:
    """Of channels and groups that are no powers of two."""
    x = torch.randn(3, 48, 4, 5, device=device, requires_grad=True)
    weight, bias = (torch.randn(48, device=device, requires_grad=True) for _ in range(2))
    grad = torch.randn(3, 48, 4, 5, device=device)
    found = operator("group_norm", backend)(x, 16, weight, bias)
    want = functional.group_norm(x, 16, weight, bias)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    given = (x, weight, bias)
    for a, b in zip(*(torch.autograd.grad(y, given, grad) for y in (found, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@every_backend
def test_gradients_of_factors_are_the_same_in_each_run(backend: str | None, device: torch.device) -> None:
    x, grad = (torch.randn(30, 8, 9, device=device) for _ in range(2))
    args = (grad, x, 2, *(torch.ones(8, device=device) for _ in range(2)))
    op = operator("group_norm_backward", backend)
    first = op(*args)[1:]
    assert all(all(map(torch.equal, op(*args)[1:], first)) for _ in range(5))
