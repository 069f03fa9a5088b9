"""max_pool2d: where the maximum lies, what is kept for the gradient, and what torch's own users see."""

import itertools

import pytest
import torch
from torch.nn import functional

import nxcore
from nxcore.nn.served import AFTER
from nxcore.ops.max_pool2d_backward import SPEC, indices
from nxcore.spec.window import Window
from tests.ops.backends import operator, params, place
from tests.table import for_each

BACKENDS = pytest.mark.parametrize("backend", params())


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
    with pytest.raises(nxcore.errors.UnsupportedProblemError, match="only torch's autograd computes it"):
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


OFF_THE_IMAGE = [
    ((1, 1, 35, 1), ((5, 2), 2, (0, 1), 2)),
    ((2, 3, 1, 35), ((2, 5), 2, (1, 0), 2)),
    ((2, 4, 9, 1), (3, (2, 5), 1, (1, 2), True)),
]
"""Calls whose windows hold no element of the image; torch's own backward must not be run on them."""

LAID_OUT = pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)


def test_windows_off_the_image_are_foretold():
    for n, kernel, stride, padding, dilation, ceil in itertools.product(
        (1, 2, 5), (1, 2, 3, 5), (1, 2, 3, 6), (0, 1, 2), (1, 2, 3, 6), (False, True)
    ):
        try:
            window = Window.of_pool((n, 1), (kernel, 1), (stride, 1), (padding, 0), (dilation, 1), ceil)
        except nxcore.errors.InvalidInputError:
            continue
        starts = [i * stride - padding for i in range(window.outputs[0])]
        empty = [all(not 0 <= a + t * dilation < n for t in range(kernel)) for a in starts]
        assert window.barren == any(empty), window


@BACKENDS
@LAID_OUT
@for_each(("shape", "window"), OFF_THE_IMAGE, ids=str)
def test_windows_off_the_image_have_no_gradient(backend, device, shape, window, form):
    x = torch.randn(shape, device=place(backend, device)).contiguous(memory_format=form).requires_grad_()
    out = operator("max_pool2d", backend)(x, *window)
    with torch.no_grad():  # torch's forward is right
        want = functional.max_pool2d(x, *window[:4], ceil_mode=len(window) > 4)
    assert torch.equal(out, want)
    assert out.isneginf().all()
    assert out.stride() == want.stride()
    assert "MaxPool" not in graph_of(out), "torch's own backward"
    out.backward(torch.randn_like(out))
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize(("shape", "window"), OFF_THE_IMAGE, ids=str)
def test_indices_off_the_image_scatter_nothing(device, shape, window):
    x = torch.randn(shape, device=device, requires_grad=True)
    out, where = nxcore.op("max_pool2d")(x, *window, return_indices=True)
    with torch.no_grad():
        given = {"ceil_mode": len(window) > 4, "return_indices": True}
        want = functional.max_pool2d(x, *window[:4], **given)
    assert torch.equal(out, want[0])
    assert torch.equal(where, want[1])
    assert not where.requires_grad
    assert "MaxPool" not in graph_of(out), "torch's own backward"
    out.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize(("shape", "window"), OFF_THE_IMAGE, ids=str)
def test_no_way_of_torch_scatters_windows_off_the_image(device, shape, window):
    x = torch.randn(shape, device=device)
    _, offsets = nxcore.op("max_pool2d_with_offsets", backend="torch")(x, *window)
    grad = torch.randn(offsets.shape, device=device)
    for way in (SPEC.reference, *SPEC.idioms.values()):
        assert torch.equal(way(grad, offsets, shape, *window), torch.zeros_like(x))


def test_a_module_of_windows_off_the_image_is_safe():
    pool = torch.nn.MaxPool2d((5, 2), 2, (0, 1), 2)
    nxcore.accelerate(pool)
    x = torch.randn(1, 1, 35, 1, requires_grad=True)
    for _ in range(2 * AFTER):
        out = pool(x)
        assert "MaxPool" not in graph_of(out), "torch's own backward"
    out.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def graph_of(result: torch.Tensor) -> str:
    """The names of the nodes that a backward pass of ``result`` goes through."""
    left, names = [result.grad_fn], []
    while left:
        node = left.pop()
        names.append(type(node).__name__)
        left.extend(n for n, _ in node.next_functions if n is not None)
    return " ".join(names)
