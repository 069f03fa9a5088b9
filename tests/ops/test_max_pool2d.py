"""max_pool2d: where the maximum lies, what is kept for the gradient, and what torch's own users see."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import nxcore
from nxcore.ops.max_pool2d_backward import indices
from nxcore.window import Window
from tests.ops.backends import operator, params, place

BACKENDS = pytest.mark.parametrize("backend", params())


@BACKENDS
@pytest.mark.parametrize("window", [(3, 1, 1), (3, 2, 1), (2,), (3, 2, 0, 2), (5, 3, 2, 1, True)], ids=str)
def test_the_gradient_is_torchs(backend, device, window):
    pool = operator("max_pool2d", backend)
    x = torch.randn(2, 3, 9, 11, device=place(backend, device))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, want = pool(ours, *window), functional.max_pool2d(theirs, *window[:4], ceil_mode=len(window) > 4)
    assert torch.equal(out, want)
    grad = torch.randn_like(out)
    out.backward(grad)
    want.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad)


@BACKENDS
def test_equal_maxima_send_the_gradient_to_the_first(backend, device):
    x = torch.zeros(1, 1, 4, 4, device=place(backend, device), requires_grad=True)
    operator("max_pool2d", backend)(x, 2).sum().backward()
    assert x.grad.flatten().nonzero().flatten().tolist() == [0, 2, 8, 10]


@BACKENDS
def test_the_last_nan_gets_the_gradient(backend, device):
    x = torch.zeros(1, 1, 2, 3, device=place(backend, device))
    x[0, 0, 0, 1] = x[0, 0, 1, 0] = torch.nan
    x.requires_grad_()
    out = operator("max_pool2d", backend)(x, (2, 3))
    assert out.isnan().all()
    out.sum().backward()
    assert x.grad.flatten().nonzero().flatten().tolist() == [3]


@BACKENDS
def test_minus_infinity_everywhere(backend, device):
    x = torch.full((1, 2, 4, 5), -torch.inf, device=place(backend, device), requires_grad=True)
    out = operator("max_pool2d", backend)(x, 3, 1, 1)
    assert out.isneginf().all()
    out.sum().backward()
    want = x.detach().clone().requires_grad_()
    functional.max_pool2d(want, 3, 1, 1).sum().backward()
    assert torch.equal(x.grad, want.grad)


def test_indices_are_for_those_who_differentiate_by_themselves(device):
    x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    out, where = nxcore.op("max_pool2d")(x, 2, return_indices=True)
    assert not where.requires_grad
    out.sum().backward()
    assert torch.equal(x.grad, functional.max_unpool2d(torch.ones_like(out), where, 2))
    pool = nxcore.op("max_pool2d", backend=next(n for n in nxcore.backends() if n != "torch"))
    with pytest.raises(nxcore.errors.UnsupportedProblemError, match="only torch's autograd knows it"):
        pool(x, 2, return_indices=True)


def test_offsets_name_the_places_that_torchs_indices_name():
    x = torch.randn(2, 3, 9, 11)
    for given in ((3, 1, 1), ((2, 3), (2, 1), (1, 0), (1, 2)), (3, 2, 1, 1, True)):
        window = Window.of_pool((9, 11), *given)
        _, offsets = nxcore.op("max_pool2d_with_offsets", backend="torch")(x, *given)
        _, want = torch.ops.aten.max_pool2d_with_indices(
            x, window.kernel, window.stride, window.padding, window.dilation, len(given) > 4
        )
        assert torch.equal(indices(offsets, window), want)


@BACKENDS
def test_second_derivatives_go_through_the_reference(backend, device):
    x = torch.randn(1, 2, 6, 6, device=place(backend, device), requires_grad=True)
    pool = operator("max_pool2d", backend)
    (first,) = torch.autograd.grad(pool(x, 3, 1, 1).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    want = x.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(
        functional.max_pool2d(want, 3, 1, 1).square().sum(), want, create_graph=True
    )
    (expected,) = torch.autograd.grad(first.sum(), want)
    torch.testing.assert_close(second, expected)
