"""What is true of add alone: torch's promotion, broadcasting and ``out``, on every backend."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nxcore
from nxcore.errors import UnsupportedProblemError
from tests.table import for_each

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


def test_out_may_interleave_with_an_input(device: torch.device) -> None:
    """The memory that a race gives ``out`` has the caller's strides, or a kernel would write past its end."""
    memory = torch.randn(200_001, device=device)[1:]
    x, out = memory[::2], memory[1::2]
    want = x + 1.0
    assert nxcore.Session().op("add")(x, 1.0, out=out) is out
    assert torch.equal(out, want)


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


def test_a_factor_reaches_a_gradient_beside_one_that_is_summed():
    grad, rest = torch.randn(5), ((), (5,), 2, (True, True))
    for _ in range(3):  # the second call and those after it repeat the first one's launches
        found = nxcore.op("add_backward", backend="numba")(grad, *rest)
        torch.testing.assert_close(found, (grad.sum(), 2 * grad))
