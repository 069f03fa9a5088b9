"""The global pools: what torch's give, where the maximum lies, and a gradient that is a view."""

import pytest
import torch

from tests.null import fakes
from tests.ops.backends import operator, params, place
from tests.table import for_each

BACKENDS = pytest.mark.parametrize("backend", params())


def test_the_gradient_of_a_mean_moves_no_byte():
    pool = fakes.session(fakes.backend()).op("global_avg_pool2d", backend="fake")
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    (grad,) = torch.autograd.grad(pool(x).sum(), x)
    assert grad.stride()[-2:] == (0, 0)
    torch.testing.assert_close(grad, torch.full_like(grad, 1 / 20))


@BACKENDS
@for_each("turned", [False, True], ids=["rows", "columns_apart"])
@for_each("last", [False, True], ids=["planes", "channels_last"])
def test_the_first_of_equals_and_the_last_nan(backend, device, last, turned):
    x = torch.full((1, 4, 7, 45), -torch.inf)  # more than a warp's, and an odd number
    x[0, 1, 2, 40] = x[0, 1, 3, 1] = x[0, 1, 5, 33] = 1.5
    x[0, 2, 1, 44] = x[0, 2, 6, 2] = torch.nan
    x[0, 2, 6, 3] = torch.inf
    x[0, 3, 0, 44], x[0, 3, 1, 0] = -0.0, 0.0
    x = x.mT.contiguous().mT if turned else x  # a column's pixels side by side
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    out, offsets = operator("global_max_pool2d_with_offsets", backend)(x.to(place(backend, device)))
    assert offsets.flatten().tolist() == [0, 2 * 45 + 40, 6 * 45 + 2, 44]
    want = torch.tensor([-torch.inf, 1.5, torch.nan, 0.0])
    torch.testing.assert_close(out.flatten().cpu(), want, equal_nan=True)
    torch.testing.assert_close(operator("global_max_pool2d", backend)(x.to(out.device)), out, equal_nan=True)


@BACKENDS
def test_offsets_that_no_forward_pass_returns(backend, device):
    offsets = torch.tensor([-1, 30, 2**31 - 1, 29], dtype=torch.int32, device=place(backend, device))
    spread = operator("global_max_pool2d_backward", backend)
    for form in (torch.contiguous_format, torch.channels_last):
        got = spread(
            torch.ones(1, 4, 1, 1, device=offsets.device), offsets.view(1, 4, 1, 1), (1, 4, 5, 6), form
        )
        assert got.sum() == got[0, 3, 4, 5] == 1
