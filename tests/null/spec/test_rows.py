"""Rows: a call's tensors along their last dimension, where they lie evenly in memory."""

import torch

from nxcore.plugin import Problem, Rows
from tests.null.fakes import SPECS


def rows(op, *args):
    return Rows.of(Problem.of(SPECS[op], SPECS[op].bind(*args)))


def test_leading_dimensions_are_one():
    found = rows("entropy", torch.ones(2, 14, 8))
    assert (found.count, found.length, found.steps) == (28, 8, ((8, 1), (1, 0)))


def test_each_tensor_has_its_own_steps():
    found = rows("entropy_backward", torch.ones(1).expand(6), torch.ones(5, 6).t())
    assert (found.count, found.length, found.steps) == (6, 5, ((0, 0), (1, 6), (5, 1)))


def test_one_row_has_no_step():
    found = rows("entropy_backward", torch.tensor(1.0), torch.ones(7))
    assert (found.count, found.length, found.steps) == (1, 7, ((0, 0), (0, 1), (0, 1)))


def test_rows_that_lie_unevenly_are_none():
    assert rows("entropy", torch.ones(2, 8, 3)[:, :5]) is None
