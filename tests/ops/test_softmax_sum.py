"""What is true of softmax_sum alone: logits that learn, and lazy views."""

import pytest
import torch

import nxcore
from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


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


def test_a_view_with_a_lazy_negation_is_read_as_it_looks(device: torch.device) -> None:
    """The imaginary part of a conjugate is a float tensor whose memory holds the negated numbers."""
    op = nxcore.op("softmax_sum")
    plain = torch.randn(2, 33, device=device)
    lazy = torch.randn(2, 33, dtype=torch.complex64, device=device).conj().imag
    assert lazy.is_neg()
    logits = torch.zeros(2, device=device)
    for xs in (plain, lazy.resolve_neg(), lazy, torch.view_as_real(lazy + 1j * plain)[..., 0]):
        torch.testing.assert_close(op(xs, logits), xs.resolve_neg().mean(0))
