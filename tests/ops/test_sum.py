"""What is true of sum alone: torch's axes and dtypes, on every backend."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nxcore
from nxcore.call.rare import RARE


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.differing_executors])
@given(st.data())
def test_sums_any_axes_of_any_layout_as_torch(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dims = data.draw(st.sets(st.integers(-len(shape), len(shape) - 1)))
    dims = tuple({d % len(shape): d for d in dims}.values())
    order = data.draw(st.permutations(range(len(shape))))
    keepdim = data.draw(st.booleans())
    x = torch.randn(shape).permute(order)
    want = torch.sum(x, dims, keepdim=keepdim)
    with nxcore.use("numba"):
        got = nxcore.op("sum")(x, dims, keepdim)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.uint8, torch.bool, torch.float64, torch.complex64], ids=str
)
def test_other_dtypes_as_torch(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(7, 9, device=device).to(dtype)
    got, want = nxcore.op("sum")(x, 0), torch.sum(x, 0)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_a_list_of_axes_is_a_hit_too() -> None:
    op = nxcore.Session().op("sum")
    x = torch.randn(3, 4, 5)
    for _ in range(RARE + 2):
        torch.testing.assert_close(op(x, [0, 1]), x.sum((0, 1)))
    assert len(op.plans) == 1
