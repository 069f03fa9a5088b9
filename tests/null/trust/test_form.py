"""Forms of results, and copies of arguments."""

import torch

from nxcore.trust.form import form, meet, misformed, spans, twin
from tests.table import for_each

X = torch.arange(12.0)


@for_each(
    "make",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(5, 8),
        lambda x: x[2:, 3:],
        lambda x: x[:0],
        lambda x: x.to(torch.bfloat16),
        lambda x: x.bool(),
    ],
)
def test_a_twin_has_the_same_strides_and_memory_of_its_own(make):
    tensor = make(torch.randn(4, 8))
    copy = twin(tensor)
    assert misformed(copy, form(tensor)) == ""
    assert copy.stride() == tensor.stride()
    assert torch.equal(copy, tensor)
    assert not meet(spans([copy]), spans([tensor]))


def test_a_tensor_twice_is_one_twin():
    first, (second, number) = twin((X, (X, 2)))
    assert first is second
    assert number == 2


def test_the_strides_of_size_one_and_of_nothing_mean_nothing():
    assert misformed(torch.empty_strided((1, 3), (7, 1)), form(torch.empty(1, 3))) == ""
    assert misformed(torch.empty_strided((0, 3), (9, 1)), form(torch.empty(0, 3))) == ""
    assert "strides" in misformed(torch.empty(3, 4).t(), form(torch.empty(4, 3)))
    assert "must be 2 results, got 1 results" in misformed((X,), form((X, X)))


def test_each_part_of_one_allocation_may_be_aligned():
    """Also the last: what lies behind it is the allocation's."""
    count, numbers, aligned = 4, 387, 512
    one = torch.zeros(count * aligned)
    parts = tuple(one[i * aligned : i * aligned + numbers] for i in range(count))
    like = form(tuple(torch.zeros(numbers) for _ in parts))
    assert misformed(parts, like) == ""
    assert "memory of its own size" in misformed(parts[:1], like[:1])
    assert "memory of its own size" in misformed(parts[:2], like[:2])
