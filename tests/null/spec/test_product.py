"""Product: the fewest and largest products of any call."""

import torch

from nxcore.plugin import Product, TensorMeta
from tests.table import for_each


def of(a, b):
    return Product.of(*(TensorMeta.of(t) for t in (a, b, torch.matmul(a, b))))


@for_each(
    ("a", "b", "sizes", "batch"),
    [
        ((5, 6), (6, 4), (5, 4, 6), ()),
        ((3, 5, 6), (6, 4), (15, 4, 6), ()),
        ((2, 3, 5, 6), (6, 4), (30, 4, 6), ()),
        ((3, 5, 6), (3, 6, 4), (5, 4, 6), (3,)),
        ((2, 3, 5, 6), (2, 3, 6, 4), (5, 4, 6), (6,)),
        ((2, 1, 5, 6), (3, 6, 4), (5, 4, 6), (2, 3)),
        ((6,), (6, 4), (1, 4, 6), ()),
        ((6,), (6,), (1, 1, 6), ()),
    ],
)
def test_batches_become_rows_where_one_matrix_takes_them_all(a, b, sizes, batch):
    found = of(torch.empty(a), torch.empty(b))
    assert (found.rows, found.columns, found.terms) == sizes
    assert found.batch == batch


def test_strides_are_the_operands_own():
    found = of(torch.empty(6, 5).T, torch.empty(6, 8)[:, ::2])
    assert (found.a, found.b, found.out) == ((1, 5), (2, 8), (4, 1))
    assert not found.turned


def test_what_lies_by_columns_is_turned():
    found = of(torch.empty(5, 6), torch.empty(6))
    assert found.turned
    assert (found.rows, found.columns, found.out[1]) == (1, 5, 1)
    assert (found.a, found.b) == ((0, 1), (6, 1))


def test_a_batch_with_gaps_stays_a_batch():
    found = of(torch.empty(3, 7, 6)[:, :5], torch.empty(6, 4))
    assert (found.rows, found.batch, found.a_batch, found.b_batch) == (5, (3,), (42,), (0,))
