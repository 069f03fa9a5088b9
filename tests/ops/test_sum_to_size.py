"""sum_to_size: the transpose of broadcasting."""

import pytest
import torch

from tests.ops.backends import operator, params, place
from tests.table import for_each


@pytest.mark.parametrize("backend", params())
@for_each("size", [(3, 1, 1), (5,), (2, 3, 1, 5), (), (1, 1, 4, 1)], ids=str)
def test_it_is_the_transpose_of_expand(backend, device, size):
    """<expand(v), x> = <v, sum_to_size(x)> for every v and x."""
    x = torch.randn(2, 3, 4, 5, device=place(backend, device), requires_grad=True)
    v = torch.randn(size, device=x.device)
    total = operator("sum_to_size", backend)(x, size)
    torch.testing.assert_close((v * total).sum(), (v.expand(x.shape) * x).sum())
    total.backward(v)
    assert torch.equal(x.grad, v.expand(x.shape))


@pytest.mark.parametrize("backend", params())
def test_nothing_to_add_up_is_no_work(backend, device):
    x = torch.randn(4, 5, device=place(backend, device))
    assert operator("sum_to_size", backend)(x, [4, 5]).data_ptr() == x.data_ptr()
