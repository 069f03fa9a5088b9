"""depthwise_conv2d: both gradients as torch's, one of them alone, and double backward."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.ops.backends import operator, params, place
from tests.table import for_each

BACKENDS = pytest.mark.parametrize("backend", params())


def _pair(device, k=3, last=False):
    x = torch.randn(2, 4, 9, 10, device=device, dtype=torch.float32)
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    return x.requires_grad_(), torch.randn(4, 1, k, k, device=device, requires_grad=True)


@BACKENDS
@for_each("last", [False, True], ids=["contiguous", "channels_last"])
@for_each(("k", "window"), [(3, (1, 1)), (5, (2, 2)), (3, (1, 2, 2)), (7, (1, 3))], ids=str)
def test_both_gradients_are_torchs(backend, device, k, window, last):
    convolve = operator("depthwise_conv2d", backend)
    x, w = _pair(place(backend, device), k, last)
    out = convolve(x, w, *window)
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        want = functional.conv2d(x, w, None, *window, groups=4)
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
        grad = torch.randn_like(out)
        expected = torch.autograd.grad(want, (x, w), grad)
    for got, wanted in zip(torch.autograd.grad(out, (x, w), grad), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        assert got.stride() == wanted.stride()


@BACKENDS
@for_each("which", [0, 1], ids=["image", "filters"])
def test_one_gradient_alone(backend, device, which):
    convolve = operator("depthwise_conv2d", backend)
    pair = _pair(place(backend, device))
    pair[1 - which].requires_grad_(False)
    (got,) = torch.autograd.grad(convolve(*pair, 1, 1).square().sum(), pair[which])
    (want,) = torch.autograd.grad(functional.conv2d(*pair, None, 1, 1, groups=4).square().sum(), pair[which])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@BACKENDS
def test_second_derivatives_go_through_the_reference(backend, device):
    convolve = operator("depthwise_conv2d", backend)
    x, w = _pair(place(backend, device))
    (first,) = torch.autograd.grad(convolve(x, w, 1, 1).pow(3).sum(), x, create_graph=True)
    got = torch.autograd.grad(first.sum(), (x, w))
    (first,) = torch.autograd.grad(
        functional.conv2d(x, w, None, 1, 1, groups=4).pow(3).sum(), x, create_graph=True
    )
    for mine, theirs in zip(got, torch.autograd.grad(first.sum(), (x, w)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
