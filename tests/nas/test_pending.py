"""Outputs that wait: their weighted sums are one operator, and all else gets values."""

import gc

import pytest
import torch
from torch import Tensor

from nxcore.nas.pending import Blends, Output, Pending, pending, value_of
from tests.table import for_each


class Edge:
    """Outputs of one edge, and the sums that became one operator."""

    def __init__(self, count=3):
        torch.manual_seed(0)
        self.blends = Blends()
        self.tensors = [torch.randn(2, 3, dtype=torch.float64) for _ in range(count)]
        self.weights = torch.rand(count, dtype=torch.float64)
        self.count = count + 1  # so that no sum is complete

    def waits(self, group="edge", zeros=()):
        return [
            pending(Output(lambda t=t: t, group, self.blends, self.count, zeros=i in zeros))
            for i, t in enumerate(self.tensors)
        ]

    @property
    def sums(self):
        return len(self.blends.groups)


def plain(x):
    assert type(x) is Pending
    return value_of(x)


FORMS = {
    "sum": lambda w, ys: sum(a * y for a, y in zip(w, ys, strict=True)),
    "right": lambda w, ys: sum(y * a for a, y in zip(w, ys, strict=True)),
    "function": lambda w, ys: torch.add(torch.add(torch.mul(w[0], ys[0]), w[1] * ys[1]), w[2].mul(ys[2])),
    "pairs": lambda w, ys: w[0] * ys[0] + (w[1] * ys[1] + w[2] * ys[2]),
    "in place": lambda w, ys: grown(w, ys),
}


def grown(w, ys):
    total = w[0] * ys[0]
    for a, y in zip(w[1:], ys[1:], strict=True):
        total += a * y
    return total


@pytest.mark.parametrize("form", FORMS)
def test_a_weighted_sum_is_one_operator(form):
    edge = Edge()
    found = plain(FORMS[form](edge.weights, edge.waits()))
    torch.testing.assert_close(found, FORMS[form](edge.weights, edge.tensors))
    assert edge.sums == 1


@for_each(
    "form",
    [
        lambda w, ys: w[0] * ys[0] + 1,
        lambda w, ys: ys[0] + ys[1],
        lambda w, ys: ys[0] * 2.0 + w[1] * ys[1],
        lambda w, ys: torch.add(w[0] * ys[0], w[1] * ys[1], alpha=2),
        lambda w, ys: w[0] * (w[1] * ys[1]),
        lambda w, ys: w[:1] * ys[0] + w[1:2] * ys[1],
        lambda w, ys: torch.stack([w[0] * ys[0], w[1] * ys[1]]).sum(0),
        lambda w, ys: (w[0] * ys[0]).float() + w[1] * ys[1],
        lambda w, ys: w[0] * ys[0] - w[1] * ys[1],
    ],
)
def test_anything_else_is_what_it_is_for_values(form):
    edge = Edge()
    found = form(edge.weights, edge.waits())
    assert type(found) is Tensor
    torch.testing.assert_close(found, form(edge.weights, edge.tensors))
    assert edge.sums == 0


def test_what_is_left_out_is_computed_where_its_value_is_needed():
    edge = Edge()
    edge.tensors[0] = torch.zeros(2, 3, dtype=torch.float64)
    total = FORMS["sum"](edge.weights, edge.waits(zeros=[0]))
    torch.testing.assert_close(plain(total), FORMS["sum"](edge.weights, edge.tensors))
    zeros = edge.waits(zeros=[0])[0]
    assert zeros.shape == (2, 3)
    assert not (edge.weights[0] * zeros).any()


def test_a_complete_sum_waits_no_longer():
    edge = Edge()
    edge.count = 3
    found = FORMS["sum"](edge.weights, edge.waits())
    assert type(found) is Tensor
    grown(edge.weights, edge.waits())
    assert edge.sums == 2
    torch.testing.assert_close(found, FORMS["sum"](edge.weights, edge.tensors))


def test_sums_of_two_edges_are_two_and_so_are_those_of_two_kinds():
    edge = Edge()
    first, second = (FORMS["sum"](edge.weights, edge.waits(group)) for group in "ab")
    torch.testing.assert_close(first + second, 2 * FORMS["sum"](edge.weights, edge.tensors))
    assert edge.blends.groups == ["a", "b"]
    edge.tensors[1] = edge.tensors[1].float()
    plain(FORMS["sum"](edge.weights, edge.waits()))
    assert edge.sums == 2, "outputs of two types are added up by torch"


def test_an_output_that_is_written_after_it_was_added_was_added_before():
    edge = Edge()
    waits, want = edge.waits(), FORMS["sum"](edge.weights, edge.tensors)
    total = FORMS["sum"](edge.weights, waits)
    gc.collect()  # products that nothing else holds are gone
    waits[1].mul_(100.0)
    torch.testing.assert_close(plain(total), want)


def test_a_sum_that_grows_leaves_others_as_they_were():
    edge = Edge()
    ys = edge.waits()
    total = edge.weights[0] * ys[0]
    both = total + edge.weights[1] * ys[1]
    kept = total
    total += edge.weights[2] * ys[2]
    assert kept is total
    torch.testing.assert_close(plain(both), grown(edge.weights[:2], edge.tensors[:2]))
    torch.testing.assert_close(plain(total), grown(edge.weights[::2], edge.tensors[::2]))


@pytest.mark.parametrize("within", [True, False])
def test_gradients_flow_as_they_would_have_where_the_sum_was_written(within):
    edge = Edge()
    edge.weights.requires_grad_()
    with torch.set_grad_enabled(within):
        total = FORMS["sum"](edge.weights, edge.waits())
    with torch.set_grad_enabled(not within):
        assert plain(total).requires_grad is within


def test_each_weight_has_a_gradient():
    edge = Edge()
    weights = [w.clone().requires_grad_() for w in edge.weights]
    plain(FORMS["sum"](weights, edge.waits(zeros=[0]))).sum().backward()
    assert weights[0].grad == 0
    torch.testing.assert_close(weights[1].grad, edge.tensors[1].sum())


def test_it_is_a_tensor_to_all_code():
    edge = Edge()
    (y, *_) = edge.waits()
    assert isinstance(y, Tensor)
    assert (y.shape, y.dtype, len(y), y.ndim) == ((2, 3), torch.float64, 2, 2)
    torch.testing.assert_close(torch.cat([y, y]), torch.cat([edge.tensors[0]] * 2))
    torch.testing.assert_close(y[0], edge.tensors[0][0])
    assert "tensor(" in repr(y)
