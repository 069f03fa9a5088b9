"""The shapes of the study: nine, and six more with the literal padding; three of them for a fast run."""

from __future__ import annotations

import pytest
import torch

from nxcore.bench.study.shapes import FILTERS, SIDES, Shape, shapes
from nxcore.errors import InvalidInputError


def test_each_side_with_each_filter_and_both_paddings():
    found = shapes()
    assert len(found) == len(set(found)) == 15  # of filter 3 both paddings are one
    assert {(s.side, s.taps) for s in found if s.same} == {(a, b) for a in SIDES for b in FILTERS}
    assert {s.padding for s in found if not s.same} == {1}


def test_a_fast_run_has_each_side_and_each_filter_once():
    found = shapes(few=True)
    assert [(s.side, s.taps) for s in found] == list(zip(SIDES, FILTERS, strict=True))
    assert all(s.same for s in found)
    assert [s.key for s in shapes([64], [7], few=True)] == [[64, 7, 3]]
    assert len(shapes([64], few=True)) == 3


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_a_shape_knows_its_result(shape):
    x, weight = shape.tensors(torch.device("cpu"))
    out = torch.nn.functional.conv2d(x, weight, padding=shape.padding)
    assert out.shape == (2, 8, shape.out, shape.out)
    assert shape.same == (out.shape[-2:] == x.shape[-2:])


def test_the_tensors_are_the_same_at_every_call():
    (a, b), (c, d) = (Shape(32, 3, 1).tensors(torch.device("cpu")) for _ in range(2))
    assert torch.equal(a, c)
    assert torch.equal(b, d)


def test_an_unknown_size_is_named():
    with pytest.raises(InvalidInputError, match="input-size must be one of 32, 64, 128, got 31"):
        shapes([31])
    with pytest.raises(InvalidInputError, match="kernel-size must be one of 3, 5, 7, got 4"):
        shapes([], [4])
