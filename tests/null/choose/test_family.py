"""Families of problems: what two of one family share, and what are their sizes."""

import torch

from nxcore.choose import family
from nxcore.choose.family import comparable, sizes
from nxcore.spec.problem import Problem
from nxcore.spec.sample import Sample, rand
from tests.null.fakes import SPECS


def problem(op, *args):
    return Problem.of(SPECS[op], Sample("it", args).build(SPECS[op], "cpu", torch.float32))


def test_a_family_shares_all_but_its_sizes():
    base = problem("sum", rand(64, 128), -1)
    assert family.of(base) == family.of(problem("sum", rand(7, 9), -1))
    assert sizes(base) == (64, 128)
    for other in (
        problem("sum", rand(64, 128), 0),
        problem("sum", rand(64, 1), -1),
        problem("sum", rand(64, 128, 2), -1),
        problem("sum", rand(64, 128, layout="transposed"), -1),
        problem("sum", rand(64, 128, dtype=torch.float16), -1),
        problem("sum", rand(64, 128), -1, True),
    ):
        assert family.of(other) != family.of(base)


def test_the_length_of_a_sequence_and_a_shape_are_sizes():
    two, three = (problem("softmax_sum", tuple(rand(50) for _ in range(n)), rand(n)) for n in (2, 3))
    assert family.of(two) == family.of(three)
    assert (sizes(two), sizes(three)) == ((2, 50, 2), (3, 50, 3))
    small, large = (problem("sum_to_size", rand(n, 5), (5,)) for n in (8, 16))
    assert family.of(small) == family.of(large)
    assert sizes(small) == (8, 5, 5)
    assert [p.name for p in SPECS["add_backward"].params if p.kind == "size"] == ["x_size", "y_size"]


def test_the_filter_of_a_convolution_is_another_kind_of_work():
    def convolution(side):
        of = problem("depthwise_conv2d", rand(2, 8, 32, 32), rand(8, 1, side, side), 1, side // 2)
        return family.point(of, {})

    assert not comparable(convolution(5), convolution(3))
    assert comparable(convolution(3), convolution(3))


def test_the_grain_is_the_widest_load_that_every_row_allows():
    assert [family.point(problem("sum", rand(4, n), -1), {}).grain for n in (8, 6, 5)] == [16, 8, 4]
