"""avg_pool2d: divisors at the border, and the gradient's layout."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.ops.backends import operator, params, place
from tests.table import for_each

BACKENDS = pytest.mark.parametrize("backend", params())


@BACKENDS
@for_each("last", [False, True], ids=["contiguous", "channels_last"])
@for_each(
    "window",
    [(3, 1, 1, False, False), (3, 2, 1), (2,), (3, 2, 1, True, True), (3, 2, 1, True, True, 4)],
    ids=str,
)
def test_the_gradient_is_torchs_in_layout_too(backend, device, window, last):
    pool = operator("avg_pool2d", backend)
    x = torch.randn(2, 3, 9, 11, device=place(backend, device))
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, want = pool(ours, *window), functional.avg_pool2d(theirs, *window)
    torch.testing.assert_close(out, want)
    assert out.stride() == want.stride()
    out.sum().backward()  # of stride 0
    want.sum().backward()
    assert ours.grad.stride() == theirs.grad.stride()
    # On the CPU: torch's CUDA kernel for channels_last forgets the padding (pytorch/pytorch#188344).
    plain = x.cpu().requires_grad_()
    functional.avg_pool2d(plain, *window).sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), plain.grad)


@BACKENDS
def test_what_lies_beyond_the_padding_is_not_counted(backend, device):
    x = torch.ones(1, 1, 5, 5, device=place(backend, device))
    out = operator("avg_pool2d", backend)(x, 2, 2, 0, True)
    assert torch.equal(out, torch.ones_like(out))


@BACKENDS
def test_infinity_does_not_stick_to_the_next_window(backend, device):
    x = torch.ones(1, 1, 8, 8, device=place(backend, device))
    x[0, 0, 2, 2] = torch.inf
    out = operator("avg_pool2d", backend)(x, 3, 1, 1)
    assert int(out.isinf().sum()) == 9
    assert not out.isnan().any()
