"""What is true of softmax and log_softmax alone, on every backend."""

import pytest
import torch

from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())
both = pytest.mark.parametrize("name", ["softmax", "log_softmax"])


@both
@every_backend
def test_a_shift_of_a_row_changes_nothing(name: str, backend: str | None, device: torch.device) -> None:
    x = torch.arange(48.0, device=device).remainder(7).view(3, 16)
    op = operator(name, backend)
    torch.testing.assert_close(op(x + 64, 1), op(x, 1))


@both
@every_backend
def test_a_mask_of_minus_infinities_has_no_gradient(
    name: str, backend: str | None, device: torch.device
) -> None:
    some = torch.randn(4, 9, device=device)
    x = torch.cat([some, torch.full((4, 7), -torch.inf, device=device)], 1).requires_grad_()
    alone = some.clone().requires_grad_()
    found, want = operator(name, backend)(x, -1)[:, :9], getattr(torch, name)(alone, -1)
    grad = torch.randn_like(want)
    torch.testing.assert_close(found, want)
    found.backward(grad)
    want.backward(grad)
    torch.testing.assert_close(x.grad[:, :9], alone.grad)
    assert not x.grad[:, 9:].any()


@both
@every_backend
def test_a_row_of_minus_infinities_alone_is_nan(name: str, backend: str | None, device: torch.device) -> None:
    x = torch.zeros(2, 3, device=device)
    x[1] = -torch.inf
    found = operator(name, backend)(x, 1)
    assert found[1].isnan().all()
    assert found[0].isfinite().all()


@both
def test_half_rows_may_have_a_wide_result_and_a_half_gradient(name: str) -> None:
    x = torch.randn(5, 33).half().requires_grad_()
    found = operator(name, None)(x, 1, dtype=torch.float32)
    want = getattr(torch, name)(x, 1, dtype=torch.float32)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, want)
    grads = [torch.autograd.grad(y, x, torch.ones_like(y).cumsum(1))[0] for y in (found, want)]
    torch.testing.assert_close(*grads)
