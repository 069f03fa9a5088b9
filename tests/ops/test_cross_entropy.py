"""What is true of cross_entropy alone, on every backend."""

import pytest
import torch
from torch.nn import functional

import nxcore
from nxcore.errors import InvalidInputError, NxcoreError
from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())
SETTINGS = [{}, {"ignore_index": 3, "label_smoothing": 0.2}, {"reduction": "none"}, {"reduction": "sum"}]


def made(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Return logits of 13 rows, targets of which some are class 3, and weights."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(13, 9, generator=generator).to(device, dtype).requires_grad_()
    return x, (torch.arange(13) % 9).to(device), torch.linspace(0.5, 2, 9).to(device, dtype)


@every_backend
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_losses_and_gradients_are_torchs(settings, backend: str | None, device: torch.device) -> None:
    x, target, weight = made(device)
    for factors in (None, weight):
        found = operator("cross_entropy", backend)(x, target, factors, **settings)
        want = functional.cross_entropy(x, target, factors, **settings)
        grad = torch.linspace(1, 2, want.numel(), device=device).view_as(want)
        torch.testing.assert_close(found, want)
        got, right = (torch.autograd.grad(loss, x, grad)[0] for loss in (found, want))
        torch.testing.assert_close(got, right)


@every_backend
def test_pixels_of_images_are_classified(backend: str | None, device: torch.device) -> None:
    x = torch.randn(2, 5, 48, 50, device=device, requires_grad=True)
    target = x.detach().roll(1, 1).argmax(1)
    losses = [f(x, target) for f in (operator("cross_entropy", backend), functional.cross_entropy)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in losses))


@every_backend
def test_a_mask_of_minus_infinities_is_no_class(backend: str | None, device: torch.device) -> None:
    x, target, _ = made(device)
    masked = torch.cat([x.detach(), torch.full((13, 7), -torch.inf, device=device)], 1).requires_grad_()
    op = operator("cross_entropy", backend)
    found, want = op(masked, target), functional.cross_entropy(x, target)
    torch.testing.assert_close(found, want)
    found.backward()
    want.backward()
    torch.testing.assert_close(masked.grad[:, :9], x.grad)
    assert not masked.grad[:, 9:].any()


@every_backend
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.5}], ids=str)
def test_a_mean_over_ignored_rows_is_nan_without_a_gradient(settings, backend, device) -> None:
    x, target, _ = made(device)
    loss = operator("cross_entropy", backend)(x, torch.full_like(target, -100), **settings)
    assert loss.isnan()
    loss.backward()
    assert not x.grad.any()


@every_backend
@pytest.mark.parametrize("wrong", [9, -1, 2**40])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_class_that_there_isnt_is_no_loss(wrong, reduction, backend, device) -> None:
    """Torch raises, as Numba does; a GPU's kernel ends, and what stands in for one makes it NaN."""
    if device.type == "cuda":
        pytest.skip("it ends the process's context")
    x, target, _ = made(device)
    target[4] = wrong
    op, back = (operator(f"cross_entropy{end}", backend) for end in ("", "_backward"))
    if backend in (None, "numba", "torch"):
        with pytest.raises((IndexError, NxcoreError), match="out of bounds"):
            op(x.detach(), target, reduction=reduction)
        return
    assert op(x.detach(), target, reduction=reduction).isnan().any()
    grad = torch.ones(13 if reduction == "none" else (), device=device)
    assert back(grad, x.detach(), target, reduction=reduction)[0][4].isnan().all()


def test_arguments_stay() -> None:
    x, target, weight = made(torch.device("cpu"))
    before = [t.detach().clone() for t in (x, target, weight)]
    nxcore.ops.cross_entropy(x, target, weight).backward()
    for now, then in zip((x, target, weight), before, strict=True):
        assert torch.equal(now, then)


def test_a_weight_has_no_gradient() -> None:
    x, target, weight = made(torch.device("cpu"))
    with pytest.raises(InvalidInputError, match="weight must not require a gradient, as in"):
        nxcore.ops.cross_entropy(x, target, weight.requires_grad_())
