"""conv2d: padding, refusals with their numbers, tiles of the CPU, and products that look like float32's."""

import pytest
import torch
from torch.nn import functional

import nxcore
from nxcore.errors import UnsupportedProblemError
from nxcore.plugin import Problem
from tests.null import fakes
from tests.ops.backends import operator, params, place
from tests.ops.test_matmul import impostors, refusing
from tests.table import for_each

BACKENDS = pytest.mark.parametrize("backend", params())
SPEC, BACKWARD = (nxcore.op(name).spec for name in ("conv2d", "conv2d_backward"))


def _with_bias(product):
    return lambda x, weight, bias, *rest: (
        product(x, weight, None, *rest) + (0.0 if bias is None else bias.view(-1, 1, 1))
    )


IMPOSTORS = {name: _with_bias(product) for name, product in impostors(functional.conv2d).items()}


@BACKENDS
def test_what_lies_past_the_last_window_is_not_multiplied_by_zero(backend, device):
    x = torch.zeros(1, 1, 4, 9, device=place(backend, device))
    x[..., 8] = x[..., 3, :] = float("inf")
    weight, grad = torch.ones(1, 1, 3, 3, device=x.device), torch.ones(1, 1, 2, 7, device=x.device)
    _, found, _ = operator("conv2d_backward", backend)(grad, x, weight)
    assert torch.equal(found.flatten(), functional.unfold(x, 3).view(9, -1).sum(1))
    assert found[0, 0, 0, 0] == 0


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_padding_that_is_not_symmetric():
    x, weight = torch.randn(2, 3, 7, 8, requires_grad=True), torch.randn(4, 3, 4, 2, requires_grad=True)
    out = nxcore.ops.conv2d(x, weight, padding="same")
    want = functional.conv2d(functional.pad(x, (0, 1, 1, 2)), weight)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(want, (x, weight), grad)
    for got, wanted in zip(torch.autograd.grad(out, (x, weight), grad), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_filters_in_channels_last_leave_the_format_of_the_image():
    weight = torch.randn(6, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 9, 10)
    assert nxcore.ops.conv2d(x, weight).is_contiguous()
    assert nxcore.ops.conv2d(x.contiguous(memory_format=torch.channels_last), weight).stride()[1] == 1


@pytest.mark.parametrize("backend", ["numba", "cuda", "triton"])
@for_each(
    ("x", "weight", "reason"),
    [
        ((1, 17, 4, 4), (2, 17, 3, 3), "takes at most 16 channels of a group, got 17"),
        ((1, 2, 4, 4), (17, 2, 3, 3), "takes at most 16 channels out of a group, got 17"),
        ((1, 2, 9, 9), (2, 2, 5, 10), "takes at most 49 taps of a filter, got 50"),
    ],
    ids=["in", "out", "taps"],
)
def test_what_is_torchs_is_declined_with_its_number(backend, x, weight, reason):
    module = pytest.importorskip(f"nxcore_{backend}")
    args = SPEC.bind(torch.ones(x), torch.ones(weight), padding=1)
    for spec, given in ((SPEC, args), (BACKWARD, BACKWARD.bind(SPEC.reference(*args), *args[:2], padding=1))):
        (kernel,) = (k for k in module.KERNELS if k.op == spec.name)
        found = kernel.accepts(Problem.of(spec, given))
        assert found.reason.startswith(("needs CUDA tensors", reason))


@pytest.mark.parametrize("backend", ["numba", "cuda", "triton"])
@for_each(("size", "stride"), [(40, 5), (40, 4), (3, 9)], ids=str)
def test_an_images_gradient_of_a_large_stride_is_torchs(backend, size, stride):
    module = pytest.importorskip(f"nxcore_{backend}")
    (kernel,) = (k for k in module.KERNELS if k.op == "conv2d_backward")
    x, weight = torch.ones(1, 2, size, size), torch.ones(3, 2, 3, 3)
    grad = torch.ones_like(functional.conv2d(x, weight, None, stride))
    for mask, phases in (((True, True, True), min(size, stride) ** 2), ((False, True, True), 0)):
        found = kernel.accepts(Problem.of(BACKWARD, BACKWARD.bind(grad, x, weight, stride, output_mask=mask)))
        if found.reason.startswith("needs CUDA tensors"):
            continue
        assert bool(found) == (phases <= 16), found.reason
        assert bool(found) or found.reason.endswith(f"one for each phase of the stride, got {phases}")


@for_each("shape", [(2, 4, 21, 37), (1, 3, 70, 300), (3, 2, 8, 64)], ids=str)
@for_each("stride", [1, 2, 3])
def test_tiles_of_the_cpu_meet_at_their_edges(shape, stride):
    numba = pytest.importorskip("nxcore_numba.conv2d", reason="Numba isn't installed")
    x, weight, bias = torch.randn(shape), torch.randn(9, shape[1], 5, 3), torch.randn(9)
    args = SPEC.bind(x, weight, bias, stride, (2, 1))
    torch.testing.assert_close(
        numba.plan(Problem.of(SPEC, args))(*args), functional.conv2d(*args), rtol=1e-5, atol=1e-5
    )


@for_each("shape", [(2, 4, 21, 37), (1, 3, 70, 300), (3, 2, 8, 64)], ids=str)
@for_each("stride", [1, 2, 3])
def test_tiles_of_the_cpus_gradients_meet_at_their_edges(shape, stride):
    numba = pytest.importorskip("nxcore_numba.conv2d_backward", reason="Numba isn't installed")
    x, weight = torch.randn(shape), torch.randn(9, shape[1], 5, 3)
    grad = torch.randn_like(functional.conv2d(x, weight, None, stride, (2, 1)))
    args = BACKWARD.bind(grad, x, weight, stride, (2, 1))
    want = BACKWARD.reference(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))
    for found, wanted in zip(numba.plan(Problem.of(BACKWARD, args))(*args), want, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


# ------------------------------------------------------------------------------- what only looks like float32


@pytest.mark.parametrize("name", IMPOSTORS)
def test_samples_of_the_gate_refuse_an_impostor(name):
    refused = refusing(SPEC, name, IMPOSTORS[name])
    assert name != "3xtf32" or not refused & {"three", "no_bias", "strided", "groups"}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_the_gate_refuses_a_planted_impostor_and_calls_are_right(name):
    session = fakes.session(fakes.backend("fake", fakes.kernel("conv2d", IMPOSTORS[name])))
    given = tuple(torch.randn(shape, requires_grad=True) for shape in ((2, 4, 9, 10), (6, 4, 3, 3), (6,)))
    with torch.no_grad():
        assert torch.equal(session.op("conv2d")(*given), functional.conv2d(*given))
        with pytest.raises(UnsupportedProblemError, match="wrong"):
            session.op("conv2d", backend="fake")(*given)


@BACKENDS
def test_channels_of_24_bits_that_cancel_are_exact(backend, device):
    """No order of their sums rounds; 3xTF32 keeps 22 bits of a factor."""
    args = next(s for s in SPEC.samples if s.name == "cancelling").build(SPEC, "cpu", torch.float32)
    want = functional.conv2d(*(x.double() for x in args[:2])).float()
    x, weight = (t.to(place(backend, device)) for t in args[:2])
    assert torch.equal(operator("conv2d", backend)(x, weight).cpu(), want)
    assert not torch.equal(IMPOSTORS["3xtf32"](*args), want)
