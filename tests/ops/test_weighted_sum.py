"""What is true of weighted_sum alone: any weights, and gradients to all of them, on every backend."""

from __future__ import annotations

import pytest
import torch

import nxcore
from tests.ops.backends import operator, params
from tests.table import for_each

every_backend = pytest.mark.parametrize("backend", params())


@every_backend
@for_each("stacked", [False, True], ids=["sequence", "stacked"])
def test_gradients_match_float64(backend: str | None, stacked: bool, device: torch.device) -> None:
    op = operator("weighted_sum", backend)
    data = torch.randn(5, 3, 130, device=device)
    xs = data.clone().requires_grad_() if stacked else [d.clone().requires_grad_() for d in data]
    weights = torch.tensor([0.0, -2.0, 1.0, 0.5, 3.0], device=device, requires_grad=True)
    grad = torch.randn(3, 130, device=device)
    op(xs, weights).backward(grad)
    xs64, weights64 = data.double().requires_grad_(), weights.detach().double().requires_grad_()
    torch.einsum("k,k...->...", weights64, xs64).backward(grad.double())
    got = xs.grad if stacked else torch.stack([x.grad for x in xs])
    torch.testing.assert_close(got.double(), xs64.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights.grad.double(), weights64.grad, rtol=1e-5, atol=1e-5)


@every_backend
def test_a_weight_of_zero_keeps_its_gradient(backend: str | None, device: torch.device) -> None:
    op = operator("weighted_sum", backend)
    xs = [torch.full((6,), float(i), device=device) for i in range(3)]
    weights = torch.zeros(3, device=device, requires_grad=True)
    op(xs, weights).sum().backward()
    torch.testing.assert_close(weights.grad, torch.tensor([0.0, 6.0, 12.0], device=device))


def test_it_is_softmax_sum_after_the_softmax() -> None:
    xs, logits = (
        [torch.randn(4, 9, dtype=torch.float64) for _ in range(3)],
        torch.randn(3, dtype=torch.float64),
    )
    got = nxcore.ops.weighted_sum(xs, torch.softmax(logits, 0))
    torch.testing.assert_close(got, nxcore.ops.softmax_sum(xs, logits))
