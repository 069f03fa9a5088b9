"""What is true of layer_norm alone, on every backend."""

import pytest
import torch
from torch.nn import functional

from nxcore.ops.layer_norm import BACKWARD, SPEC
from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


@every_backend
def test_rows_far_from_0_lose_nothing(backend: str | None, device: torch.device) -> None:
    """A variance of squares less the square of the mean would be that of rounding alone."""
    x = 1e3 + torch.randn(7, 96, device=device)
    found = operator("layer_norm", backend)(x, (96,), None, None, 0.0)
    torch.testing.assert_close(found.mean(1), torch.zeros(7, device=device), rtol=0, atol=2e-3)
    want = functional.layer_norm(x.double(), (96,), eps=0.0).float()
    torch.testing.assert_close(found, want, rtol=0, atol=4e-3)


@every_backend
def test_gradients_of_many_rows_are_torchs(backend: str | None, device: torch.device) -> None:
    x = torch.randn(650, 24, device=device, requires_grad=True)
    weight, bias = (torch.randn(24, device=device, requires_grad=True) for _ in range(2))
    grad = torch.randn(650, 24, device=device)
    found = operator("layer_norm", backend)(x, (24,), weight, bias)
    want = functional.layer_norm(x, (24,), weight, bias)
    torch.testing.assert_close(found, want)
    given = (x, weight, bias)
    for a, b in zip(*(torch.autograd.grad(y, given, grad) for y in (found, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@every_backend
def test_gradients_of_factors_are_the_same_in_each_run(backend: str | None, device: torch.device) -> None:
    x, grad = (torch.randn(300, 40, device=device) for _ in range(2))
    args = (grad, x, (40,), *(torch.ones(40, device=device) for _ in range(2)))
    op = operator("layer_norm_backward", backend)
    first = op(*args)[1:]
    assert all(all(map(torch.equal, op(*args)[1:], first)) for _ in range(5))


def test_factors_of_other_dtypes_are_as_torchs() -> None:
    """Torch takes factors in float32 of half types; others are computed as wide as the widest."""
    x = torch.randn(3, 8)
    weight, bias = torch.randn(2, 8).unbind()
    half = x.bfloat16()
    want = functional.layer_norm(half, (8,), weight, bias)
    torch.testing.assert_close(SPEC.reference(half, (8,), weight, bias), want, rtol=0, atol=2**-6)
    args = (x, x, (8,), weight.bfloat16(), bias.double())
    found, wide = (BACKWARD.reference(*given) for given in (args, [_double(a) for a in args]))
    assert [t.dtype for t in found] == [torch.float32, torch.bfloat16, torch.float64]
    for a, b in zip(found, wide, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=2**-7, atol=1e-6)


def _double(value: object) -> object:
    return value.double() if isinstance(value, torch.Tensor) else value
