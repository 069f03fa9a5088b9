"""What is true of rms_norm alone, on every backend."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.profiler import profile

from nxcore.ops.rms_norm import BACKWARD
from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


@every_backend
def test_rows_have_a_mean_square_of_1(backend: str | None, device: torch.device) -> None:
    x = 50 * torch.randn(7, 96, device=device)
    found = operator("rms_norm", backend)(x, (96,), None, 1e-6)
    torch.testing.assert_close(found.square().mean(1), torch.ones(7, device=device))


@every_backend
def test_gradients_of_many_rows_are_torchs(backend: str | None, device: torch.device) -> None:
    x = torch.randn(650, 24, device=device, requires_grad=True)
    weight = torch.randn(24, device=device, requires_grad=True)
    grad = torch.randn(650, 24, device=device)
    found = operator("rms_norm", backend)(x, (24,), weight)
    want = functional.rms_norm(x, (24,), weight)
    torch.testing.assert_close(found, want)
    for a, b in zip(*(torch.autograd.grad(y, (x, weight), grad) for y in (found, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@every_backend
def test_a_weight_gradient_is_the_same_in_each_run(backend: str | None, device: torch.device) -> None:
    x, grad = (torch.randn(300, 40, device=device) for _ in range(2))
    args = (grad, x, (40,), torch.ones(40, device=device), 1e-6)
    op = operator("rms_norm_backward", backend)
    first = op(*args)[1]
    assert all(torch.equal(op(*args)[1], first) for _ in range(5))


def test_on_cuda_torchs_own_gradient_is_the_reference() -> None:
    with FakeTensorMode(), torch.no_grad(), profile() as seen:
        x, weight = (torch.empty(size, device="cuda") for size in ((3, 4), (4,)))
        found = [BACKWARD.reference(x, x, (4,), w, None, (True, True)) for w in (weight, None)]
    assert [None if t is None else t.shape for pair in found for t in pair] == [x.shape, (4,), x.shape, None]
    assert sum(e.count for e in seen.key_averages() if e.key == "aten::_fused_rms_norm_backward") == 2
