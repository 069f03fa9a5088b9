"""What is true of add alone: torch's promotion, broadcasting and ``out``, on every backend."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nxcore
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from tests.ops.backends import operator, params
from tests.table import for_each

every_backend = pytest.mark.parametrize("backend", params())
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool)


@for_each(("a", "b"), list(itertools.product(DTYPES, repeat=2)), ids=str)
def test_promotes_as_torch(a: torch.dtype, b: torch.dtype, device: torch.device) -> None:
    x, y = torch.ones(5, 3, device=device).to(a), torch.ones(3, device=device).to(b)
    got, want = nxcore.op("add")(x, y), torch.add(x, y)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.differing_executors])
@given(st.data())
def test_broadcasts_as_torch(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), max_size=4))
    shapes = [
        tuple(1 if data.draw(st.booleans()) else n for n in shape[data.draw(st.integers(0, len(shape))) :])
        for _ in "xy"
    ]
    x, y = (torch.randn(s) for s in shapes)
    alpha = data.draw(st.sampled_from([1, 2, -0.5]))
    nxcore_add = nxcore.op("add", backend="torch")
    assert torch.equal(nxcore_add(x, y, alpha=alpha), torch.add(x, y, alpha=alpha))
    with nxcore.use("numba"):
        torch.testing.assert_close(nxcore.op("add")(x, y, alpha=alpha), torch.add(x, y, alpha=alpha))


@every_backend
def test_writes_into_out(backend: str | None, device: torch.device) -> None:
    add = operator("add", backend)
    x, y = torch.randn(6, 70, device=device), torch.randn(6, 70, device=device)
    out = torch.full((6, 70), torch.nan, device=device)
    assert add(x, y, alpha=2, out=out) is out
    torch.testing.assert_close(out, x + 2 * y)


@every_backend
def test_out_may_be_an_input(backend: str | None, device: torch.device) -> None:
    add = operator("add", backend)
    x, y = torch.randn(6, 70, device=device), torch.randn(6, 70, device=device)
    want = x + y
    assert add(x, y, out=x) is x
    torch.testing.assert_close(x, want)


def test_out_may_interleave_with_an_input(device: torch.device) -> None:
    """The memory that a race gives ``out`` has the caller's strides, or a kernel would write past its end."""
    memory = torch.randn(200_001, device=device)[1:]
    x, out = memory[::2], memory[1::2]
    want = x + 1.0
    assert nxcore.Session().op("add")(x, 1.0, out=out) is out
    assert torch.equal(out, want)


def test_choosing_never_writes_into_out_twice(device: torch.device) -> None:
    """The race of a new problem runs on memory of its own, or x would be added many times."""
    x, y = torch.zeros(777, device=device), torch.ones(777, device=device)
    nxcore.Session().op("add")(x, y, out=x)
    assert torch.equal(x, y)


@pytest.mark.parametrize("shift", [1, -1])
def test_out_must_not_overlap_in_part(shift: int) -> None:
    memory = torch.zeros(10)
    x, out = (memory[:-1], memory[1:]) if shift > 0 else (memory[1:], memory[:-1])
    with pytest.raises(InvalidInputError, match="out must not overlap an input in part"):
        nxcore.op("add")(x, torch.ones(9), out=out)


def test_out_must_not_overlap_itself() -> None:
    with pytest.raises(InvalidInputError, match="out must not overlap itself: it has stride 0"):
        nxcore.op("add")(torch.ones(3), torch.ones(3), out=torch.zeros(1).expand(3))


def test_out_is_not_differentiated() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(InvalidInputError, match="out can't be differentiated"):
        nxcore.op("add")(x, x, out=torch.zeros(3))


@every_backend
def test_gradients_undo_broadcasting(backend: str | None, device: torch.device) -> None:
    add = operator("add", backend)
    x = torch.randn(4, 3, 50, device=device, requires_grad=True)
    y = torch.randn(3, 1, device=device, requires_grad=True)
    grad = torch.randn(4, 3, 50, device=device)
    add(x, y, alpha=-2.0).backward(grad)
    torch.testing.assert_close(x.grad, grad)
    torch.testing.assert_close(y.grad, -2 * grad.sum((0, 2)).view(3, 1), rtol=1e-4, atol=1e-5)


def test_alpha_is_read_at_every_call(device: torch.device) -> None:
    """A schedule changes alpha at every step: one plan serves them all."""
    add = nxcore.Session().op("add")
    x, y = torch.randn(100, device=device), torch.randn(100, device=device)
    for step in range(5):
        torch.testing.assert_close(add(x, y, alpha=step / 7), x + step / 7 * y)
    assert len(add.plans) == 1


def test_integers_are_declined_by_name_on_a_strict_backend() -> None:
    with pytest.raises(
        UnsupportedProblemError, match=r"backend 'numba' can't take this call of 'add'.*got int64"
    ):
        nxcore.op("add", backend="numba")(torch.arange(3), torch.arange(3))
