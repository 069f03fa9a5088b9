"""Tensors without memory of their own: no kernel may take their address, so the reference serves them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import nxcore
from nxcore.errors import UnsupportedProblemError
from tests.ops.backends import operator, params
from tests.table import for_each

SHAPE = (16, 32)


def zeros() -> Tensor:
    """Return zeros that torch keeps no memory for."""
    return torch._efficientzerotensor(SHAPE)


def escaped(transform: Callable[..., Callable[..., object]]) -> Tensor:
    """Return a tensor of a transform that is over."""
    kept: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        kept.append(x)
        return x.sum()

    transform(function)(torch.ones(SHAPE))
    return kept[0]


@pytest.mark.parametrize("backend", params())
@for_each("given", ["x", "y", "both"])
def test_zeros_without_memory_are_served_by_the_reference(
    backend: str | None, given: str, device: torch.device
) -> None:
    add, x = operator("add", backend), torch.randn(SHAPE, device=device)
    add(x, x)  # a plan is there, found near and far, and must not be taken below
    add(x, x)
    none = torch._efficientzerotensor(SHAPE, device=device)
    args = {"x": (none, x), "y": (x, none), "both": (none, none)}[given]
    if backend in (None, "torch"):
        torch.testing.assert_close(add(*args).clone(), torch.add(*args).clone())
    else:
        with pytest.raises(UnsupportedProblemError, match="it has no memory of its own"):
            add(*args)
    torch.testing.assert_close(add(x, x), x + x)


@pytest.mark.parametrize("op", ["sum", "entropy", "softmax_sum"])
def test_zeros_among_other_operators(op: str) -> None:
    call, x = nxcore.op(op), torch.randn(SHAPE)
    rest = {"sum": (0,), "entropy": (), "softmax_sum": (torch.zeros(16),)}[op]
    with nxcore.use("numba"):
        for _ in range(2):
            call(x, *rest)
        got = call(zeros(), *rest)
    torch.testing.assert_close(got.clone(), call(torch.zeros(SHAPE), *rest))


def test_one_of_several_candidates_without_memory() -> None:
    with nxcore.use("numba"):
        blend, x, logits = nxcore.op("softmax_sum"), torch.randn(SHAPE), torch.zeros(2)
        for _ in range(2):
            blend((x, x), logits)
        torch.testing.assert_close(blend((x, zeros()), logits), x / 2)


def test_a_gradient_without_memory() -> None:
    x = torch.randn(SHAPE, requires_grad=True)
    with nxcore.use("numba"):
        for grad in (torch.ones(SHAPE), torch.ones(SHAPE), zeros()):
            y = nxcore.op("softmax_sum")(x[None], torch.zeros(1, requires_grad=True))
            (got,) = torch.autograd.grad(y, x, grad)
            torch.testing.assert_close(got.clone(), grad.clone())


@pytest.mark.parametrize(
    "transform",
    [torch.func.vmap, torch.func.grad, torch.func.functionalize],
    ids=["vmap", "grad", "functionalize"],
)
def test_a_tensor_that_left_its_transform_reaches_no_kernel(
    transform: Callable[..., Callable[..., object]],
) -> None:
    add, left = nxcore.op("add", backend="torch"), escaped(transform)
    x = torch.randn(left.shape)
    strict = nxcore.Session().op("add", backend="numba")
    for _ in range(2):
        strict(x, x)
    with pytest.raises(UnsupportedProblemError, match="it has no memory of its own"):
        strict(left, left)
    with pytest.raises(UnsupportedProblemError, match="it has no memory of its own"):
        strict(x, left)
    assert tuple(add(x, x).shape) == tuple(left.shape)


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_meta_and_fake_tensors_reach_no_kernel(kind: str) -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(SHAPE)
    given = fake if kind == "fake" else torch.empty(SHAPE, device="meta")
    x = torch.randn(SHAPE)
    with nxcore.use("numba"):
        for _ in range(2):
            nxcore.op("add")(x, x)
        assert tuple(nxcore.op("add")(given, given).shape) == SHAPE
    with pytest.raises(UnsupportedProblemError):
        nxcore.op("add", backend="numba")(given, given)
