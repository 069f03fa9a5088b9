"""sep_conv2d: forward and its gradients as torch's chain of convolutions, and double backward."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.nn import functional

from tests.ops.backends import operator, params, place
from tests.table import for_each

MODULE = importlib.import_module("nxcore.ops.sep_conv2d")  # the package's attribute is the operator
BACKENDS = pytest.mark.parametrize("backend", params())


def _given(device, last=False):
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 4, 7, 8, device=device).contiguous(memory_format=form)
    weights = torch.randn(4, 1, 3, 3, device=device), torch.randn(5, 4, 1, 1, device=device)
    return tuple(t.requires_grad_() for t in (x, *weights))


def _chain(x, filters, points, *window):
    return functional.conv2d(functional.conv2d(functional.relu(x), filters, None, *window, groups=4), points)


@BACKENDS
@for_each("last", [False, True], ids=["contiguous", "channels_last"])
@for_each("window", [(1, 1), (2, 2, 2)], ids=str)
def test_gradients_are_torchs(backend, device, last, window):
    convolve = operator("sep_conv2d", backend)
    given = _given(place(backend, device), last)
    out = convolve(*given, *window)
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        want = _chain(*given, *window)
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
        assert out.stride() == want.stride()
        grad = torch.randn_like(out)
        expected = torch.autograd.grad(want, given, grad)
    for got, wanted in zip(torch.autograd.grad(out, given, grad), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@BACKENDS
def test_second_derivatives_go_through_the_reference(backend, device):
    convolve = operator("sep_conv2d", backend)
    given = _given(place(backend, device))
    got, want = (
        torch.autograd.grad(
            torch.autograd.grad(f(*given, 1, 1).pow(3).sum(), given[0], create_graph=True)[0].sum(), given
        )
        for f in (convolve, _chain)
    )
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_torchs_convolution_serves_where_it_takes_no_tf32(device, monkeypatch):
    given = tuple(t.detach().double() for t in _given(device))
    image, filters, points = given
    want = _chain(image, filters, points, 1, 1)
    for exact in (True, False):
        monkeypatch.setattr(MODULE, "exact", lambda _, exact=exact: exact)
        torch.testing.assert_close(MODULE.reference(image, filters, points, 1, 1), want)


@pytest.mark.gpu
def test_a_middle_of_float32_is_convolved_as_the_process_allows(monkeypatch):
    u = torch.ones(1, 2, 3, 3, device="cuda")
    for allowed in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert MODULE.exact(u) is not allowed
