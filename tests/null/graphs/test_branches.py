"""Operations on one tensor, within a capture: the same results, and the same gradients by fewer additions."""

import contextlib

import torch
from torch import nn

from nxcore.graphs import branches
from nxcore.graphs.branches import READERS, branched, reader_of
from nxcore.graphs.late import late
from tests.nn.tape import _Notes
from tests.table import for_each


def operations():
    torch.manual_seed(0)
    return [
        nn.Identity(),
        nn.Conv2d(3, 3, 3, padding=1),
        nn.Sequential(nn.ReLU(), nn.Conv2d(3, 3, 1)),
        torch.zeros_like,  # without a gradient
        torch.sin,
    ]


def outcome(x, *, further=False):
    """Return the sum of all results, x's gradient, and the gradient of its square."""
    made = operations()
    found = branched(made, x)
    out = sum((i + 1) * y.square() for i, y in enumerate(found))
    wanted = [x, *(p for op in made if isinstance(op, nn.Module) for p in op.parameters())]
    grads = torch.autograd.grad(out.sum(), wanted, create_graph=further)
    if not further:
        return [out, *grads]
    return [out, *grads, *torch.autograd.grad(grads[0].square().sum(), wanted)]


@for_each("further", [False, True])
@for_each("leaf", [False, True])
def test_results_and_gradients_are_the_same(further, leaf):
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64).float().requires_grad_()
    given = x if leaf else x * 2
    want = outcome(given, further=further)
    with late():
        got = outcome(given, further=further)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@for_each("count", [1, 3, READERS + 2])
@for_each("further", [False, True])
def test_readers_of_a_tensor_have_one_sum_of_their_gradients(count, further):
    x = torch.randn(2, 3).double().requires_grad_()
    found = []
    for read in (lambda t: t, reader_of):
        y = x * 2
        with late():
            outs = [(i + 1) * read(y).sin() for i in range(count)] + [y.cos()]
            (grad,) = torch.autograd.grad(sum(outs).square().sum(), x, create_graph=further)
            found.append(torch.autograd.grad(grad.square().sum(), x)[0] if further else grad)
    torch.testing.assert_close(*found)


def test_a_tensor_that_was_written_has_other_readers():
    x, found = torch.randn(2, 3).double().requires_grad_(), []
    for read in (lambda t: t, reader_of):
        with late():
            y = x * 2
            out = read(y) + 1
            y.mul_(3)
            out = out + read(y).sum()
        found.append(torch.autograd.grad(out.sum(), x)[0])
    torch.testing.assert_close(*found)


def test_a_reader_outside_of_a_captured_call_or_without_a_gradient_has_the_tensor_itself():
    x = torch.randn(2, 3)
    assert reader_of(x.requires_grad_()) is x
    with late():
        assert reader_of(x.detach()).grad_fn is None
        with torch.no_grad():
            assert reader_of(x) is x
        assert reader_of(x) is not reader_of(x)


def test_what_needs_no_gradient_is_given_as_it_is():
    x = torch.randn(2, 3, 5, 6)
    seen = []
    with late():
        branched([seen.append, seen.append], x)
        with torch.no_grad():
            branched([seen.append, seen.append], x.clone().requires_grad_())
    assert seen[0] is seen[1] is x
    assert not seen[2].requires_grad or seen[2] is seen[3]


def test_transforms_of_torch_see_the_operations_as_they_are():
    x = torch.randn(2, 3)

    def summed(t):
        with late():
            return sum(branched([torch.sin, torch.cos], t)).sum()

    torch.testing.assert_close(torch.func.grad(summed)(x), x.cos() - x.sin())
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(summed))(x), x.cos() - x.sin())


def additions(block):
    x = torch.randn(2, 3, 5, 6, requires_grad=True)
    with block:
        found = branched([torch.sin] * 7, x)
    with _Notes() as notes:
        torch.autograd.grad(found, x, [torch.ones_like(x)] * 7)
    return sum("add" in func.__name__ for func, *_ in notes.lines)


def test_seven_gradients_are_one_sum_where_a_kernel_is_chosen(monkeypatch):
    class Chosen:
        def by_kernel(self, xs, weights):
            assert weights.tolist() == [1.0] * 7
            return torch.stack(xs).sum(0)

    assert additions(contextlib.nullcontext()) == 6
    assert additions(late()) == 6, "no kernel is chosen"
    monkeypatch.setattr(branches, "_sum", Chosen)
    assert additions(late()) == 0


def test_gradients_are_added_up_as_autograd_does():
    """The last operation's first, so that float32 gives the same bits."""
    x = torch.randn(64, requires_grad=True)
    scales = [10.0**i for i in range(-3, 4)]
    grads = [torch.randn(64) for _ in scales]

    def gradient():
        found = branched([lambda t, s=s: t * s for s in scales], x)
        return torch.autograd.grad(found, x, grads)[0]

    want = gradient()
    with late():
        got = gradient()
    torch.testing.assert_close(got, want, rtol=0, atol=0)
