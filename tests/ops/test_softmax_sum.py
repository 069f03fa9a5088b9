"""What is true of softmax_sum alone: gradients to every candidate and to the logits, on every backend."""

from __future__ import annotations

import pytest
import torch

import nxcore
from nxcore.errors import InvalidInputError
from tests.ops.backends import operator, params
from tests.table import for_each

every_backend = pytest.mark.parametrize("backend", params())


def _expected(xs: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.einsum("k,k...->...", torch.softmax(logits, 0), xs)


@every_backend
@for_each("stacked", [False, True], ids=["sequence", "stacked"])
def test_gradients_match_float64(backend: str | None, stacked: bool, device: torch.device) -> None:
    op = operator("softmax_sum", backend)
    data = torch.randn(5, 3, 130, device=device)
    xs = data.clone().requires_grad_() if stacked else [d.clone().requires_grad_() for d in data]
    logits = torch.randn(5, device=device, requires_grad=True)
    grad = torch.randn(3, 130, device=device)
    op(xs, logits).backward(grad)
    xs64, logits64 = data.double().requires_grad_(), logits.detach().double().requires_grad_()
    _expected(xs64, logits64).backward(grad.double())
    got = xs.grad if stacked else torch.stack([x.grad for x in xs])
    torch.testing.assert_close(got.double(), xs64.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits.grad.double(), logits64.grad, rtol=1e-5, atol=1e-5)


@every_backend
def test_only_the_candidates_that_need_a_gradient_get_one(backend: str | None, device: torch.device) -> None:
    op = operator("softmax_sum", backend)
    xs = [torch.randn(7, 9, device=device, requires_grad=i == 1) for i in range(3)]
    logits = torch.randn(3, device=device)
    op(xs, logits).sum().backward()
    assert [x.grad is not None for x in xs] == [False, True, False]
    weight = torch.softmax(logits, 0)[1]
    torch.testing.assert_close(xs[1].grad, weight.expand(7, 9), rtol=1e-5, atol=1e-6)


@every_backend
def test_a_parameter_as_logits_learns(backend: str | None, device: torch.device) -> None:
    op = operator("softmax_sum", backend)
    alpha = torch.nn.Parameter(torch.zeros(4, device=device))
    target = [torch.full((8, 8), float(i), device=device) for i in range(4)]
    optimizer = torch.optim.SGD([alpha], lr=0.5)
    for _ in range(15):
        optimizer.zero_grad()
        (op(target, alpha) - 3.0).square().mean().backward()
        optimizer.step()
    assert int(alpha.argmax()) == 3


def test_second_derivatives_go_through_the_reference() -> None:
    xs = [torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    logits = torch.randn(3, dtype=torch.float64, requires_grad=True)
    op = nxcore.op("softmax_sum")
    assert torch.autograd.gradcheck(lambda *a: op(a[:-1], a[-1]), (*xs, logits))
    assert torch.autograd.gradgradcheck(lambda *a: op(a[:-1], a[-1]), (*xs, logits))


@every_backend
def test_the_same_words_on_every_backend(backend: str | None, device: torch.device) -> None:
    op = operator("softmax_sum", backend)
    with pytest.raises(
        InvalidInputError, match=r"logits must be \(2,\), one per candidate, got shape \(3,\)"
    ):
        op([torch.zeros(4, device=device)] * 2, torch.zeros(3, device=device))


def test_a_view_with_a_lazy_negation_is_read_as_it_looks(device: torch.device) -> None:
    """The imaginary part of a conjugate is a float tensor whose memory holds the negated numbers."""
    op = nxcore.op("softmax_sum")
    plain = torch.randn(2, 33, device=device)
    lazy = torch.randn(2, 33, dtype=torch.complex64, device=device).conj().imag
    assert lazy.is_neg()
    logits = torch.zeros(2, device=device)
    for xs in (plain, lazy.resolve_neg(), lazy, torch.view_as_real(lazy + 1j * plain)[..., 0]):
        torch.testing.assert_close(op(xs, logits), xs.resolve_neg().mean(0))
