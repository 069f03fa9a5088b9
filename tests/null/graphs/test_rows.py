"""Rows of a matrix, within a capture: the same gradient of the matrix, put together once."""

import torch

from nxcore.graphs.late import late
from nxcore.graphs.rows import span_of
from tests.nn.tape import _Notes
from tests.table import for_each


def matrix(leaf):
    torch.manual_seed(0)
    made = torch.randn(4, 6, requires_grad=True)
    return made, made if leaf else made.softmax(-1)


def weighed(spans):
    return sum((i + 1) * span.square().sum() for i, span in enumerate(spans))


@for_each("further", [False, True])
@for_each("rows", [(0, 1, 2, 3), (2, 0), (1, 1, -1)], ids=["all", "some", "twice"])
@for_each("span", [(0, 6), (1, 6), (2, 5)])
@for_each("leaf", [False, True])
def test_the_gradient_is_the_same(leaf, span, rows, further):
    found = []
    for block in (False, True):
        own, weights = matrix(leaf)
        with late() if block else torch.enable_grad():
            out = weighed(span_of(weights[i], *span) for i in rows)
        grad = torch.autograd.grad(out, own, create_graph=further)
        found.append([out, *grad, *(torch.autograd.grad(grad[0].square().sum(), own) if further else ())])
    for got, want in zip(*reversed(found), strict=True):
        torch.testing.assert_close(got, want)


def launches(rows, span):
    own, weights = matrix(True)
    with late():
        found = [span_of(weights[i], *span) for i in rows]
    with _Notes() as notes:
        torch.autograd.grad(found, own, [torch.ones_like(f) for f in found])
    return [func.__name__ for func, *_ in notes.lines]


def test_all_gradients_are_put_together_once():
    assert launches((0, 1, 2, 3), (0, 6)).count("stack.default") == 1
    names = launches((0, 1, 2, 3), (1, 6))
    assert not any("backward" in name or "add" in name for name in names)
    assert names.count("constant_pad_nd.default") == 1


PLAIN = {
    "computed": lambda m: m[0] * 1,
    "a column": lambda m: m[:, 0],
    "a row of another": lambda m: m.t()[0],
    "expanded": lambda m: m[:1].expand(4, 6)[1],
    "of three dimensions": lambda m: m.view(2, 2, 6)[0][1],
    "without a gradient": lambda m: m.detach()[0],
}


@for_each("what", PLAIN)
@for_each("leaf", [False, True])
def test_any_other_vector_is_sliced(what, leaf):
    _, weights = matrix(leaf)
    with late():
        row = PLAIN[what](weights)
        span = span_of(row, 1, 3)
    torch.testing.assert_close(span, row[1:3])
    assert (span.grad_fn is None) or span.grad_fn.name() == "SliceBackward0"


def test_one_by_one_a_whole_row_is_the_row_itself():
    _, weights = matrix(True)
    row = weights[1]
    assert span_of(row, 0, 6) is row
    assert span_of([1, 2, 3], 0, 2) == [1, 2]
    with late():
        assert span_of(weights.detach()[0], 0, 6).shape == (6,)
        assert span_of([1, 2, 3], 1, 3) == [2, 3]


def test_a_row_with_a_hook_is_sliced_and_a_matrix_that_was_written_has_new_rows():
    _, weights = matrix(False)
    with late():
        row = weights[0]
        row.register_hook(lambda g: 2 * g)
        assert span_of(row, 0, 6) is row
        kept = weights[1]
        kept.retain_grad()
        assert span_of(kept, 0, 6) is kept
        before = span_of(weights[2], 0, 6)
        weights.mul_(3)
        after = span_of(weights[2], 0, 6)
    (grad,) = torch.autograd.grad(after.sum(), weights)
    torch.testing.assert_close(grad, torch.eye(4)[2].view(4, 1).expand(4, 6))
    assert before is not after
