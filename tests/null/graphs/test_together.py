"""Gradients of weights that kernels leave in shares: one sum in a captured call, and the same numbers."""

import contextlib
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import nxcore
from nxcore.graphs import together
from nxcore.graphs.late import late
from nxcore.graphs.together import weights_of
from nxcore.spec.sums import sums_of
from tests.stand_ins import stand_in

together_has = stand_in(together)


class Product(torch.autograd.Function):
    """A product of x by two weights, whose kernel leaves a row of shares for each row of x."""

    @staticmethod
    def forward(ctx, x, weight, factor):
        ctx.save_for_backward(x, weight, factor)
        return functional.linear(x, weight) * factor

    @staticmethod
    def backward(ctx, grad):
        x, weight, factor = ctx.saved_tensors
        if torch.is_grad_enabled():  # as an operator's reference
            return (
                (grad * factor) @ weight,
                (grad * factor).mT @ x,
                (grad * functional.linear(x, weight)).sum(0),
            )
        of_weight = (grad * factor).unsqueeze(2) * x.unsqueeze(1)
        shares = torch.cat([of_weight.flatten(1), grad * functional.linear(x, weight)], 1)

        def finish():
            made = shares.sum(0)
            return made[: weight.numel()].view(weight.shape), made[weight.numel() :]

        sums = sums_of(weight, factor)
        found = finish() if sums is None else sums.leave(shares, (weight, factor), finish)
        return (grad * factor) @ weight, *found


class Layer(nn.Module):
    def __init__(self, given=3, made=4):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.randn(made, given)), nn.Parameter(torch.randn(made))

    def forward(self, x):
        return Product.apply(x, *weights_of(self.weight, self.factor))


class Net(nn.Module):
    """Two layers, one after the other and again; a third that nobody calls."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.idle = Layer(), Layer(4, 3), Layer()

    def forward(self, x):
        return self.two(self.one(x))


class Twice(Net):
    def forward(self, x):
        return self.two(self.one(self.two(self.one(x))))


@pytest.fixture
def captured(together_has):
    """Shares are left, as in a capture; the matrices of each sum."""
    summed = []

    def by_kernel(xs):
        summed.append([tuple(x.shape) for x in xs])
        return nxcore.op("column_sums")(xs)

    together_has(capturing=lambda shares: True, _sums=lambda: SimpleNamespace(by_kernel=by_kernel))
    return summed


def gradients(net, *, further=False, within=True):
    x = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
    wanted = [x, *net.parameters()]
    if within:
        with late(net) as waiting:
            out = net(x)
    else:
        out, waiting = net(x), None
    grads = torch.autograd.grad(out.square().sum(), wanted, allow_unused=True, create_graph=further)
    if further:
        total = sum(g.square().sum() for g in grads if g is not None)
        grads = torch.autograd.grad(total, wanted, allow_unused=True)
    return grads, waiting


@pytest.mark.parametrize("make", [Net, Twice])
@pytest.mark.parametrize("further", [False, True])
def test_all_weights_have_one_sum_and_their_own_gradients(captured, make, further):
    net = make()
    want, _ = gradients(net, further=further, within=False)
    found, waiting = gradients(net, further=further)
    torch.testing.assert_close(found, want)
    assert [g is None for g in found] == [g is None for g in want]
    if not further:
        assert captured == [[(5, 4 * 3 + 3), (5, 3 * 4 + 4)]], "the last layer's first"
        assert waiting.sums.count == 4


def test_a_run_before_the_capture_has_the_sums_chosen_and_the_kernels_own_gradients(captured, together_has):
    together_has(capturing=lambda shares: False)
    net = Net()
    want, _ = gradients(net, within=False)
    found, waiting = gradients(net)
    torch.testing.assert_close(found, want, rtol=0, atol=0)
    assert len(captured) == 1
    assert waiting.sums.count == 0


def test_where_no_kernel_is_chosen_each_adds_up_its_own(captured, together_has):
    together_has(_sums=lambda: SimpleNamespace(by_kernel=lambda xs: None))
    net = Net()
    want, _ = gradients(net, within=False)
    found, waiting = gradients(net)
    torch.testing.assert_close(found, want, rtol=0, atol=0)
    assert waiting.sums.count == 0


def test_one_kernel_alone_adds_up_its_own(captured):
    layer = Layer()
    found, waiting = gradients(layer)
    torch.testing.assert_close(found, gradients(layer, within=False)[0], rtol=0, atol=0)
    assert captured == []
    assert waiting.sums.count == 0


def test_shares_of_too_many_bytes_are_not_kept(captured, together_has):
    together_has(MOST=5 * 16 * 4)
    net = Twice()
    torch.testing.assert_close(gradients(net)[0], gradients(net, within=False)[0])
    assert captured == [], "one of both matrices had room"


def test_outside_of_a_captured_call_weights_are_themselves():
    net = Net()
    net.two.weight.requires_grad_(False)
    assert weights_of(net.one.weight)[0] is net.one.weight
    with late():
        assert weights_of(net.one.weight)[0] is net.one.weight, "of no module"
    with late(net):
        other = torch.randn(3, requires_grad=True)
        assert weights_of(other)[0] is other, "not the module's"
        assert weights_of(net.two.weight)[0] is net.two.weight, "without a gradient"


def test_a_weight_is_given_to_one_reader_as_autograd_would_add_up_what_stands_for_gradients():
    net = Net()
    with late(net):
        (one,), (other,) = weights_of(net.one.weight), weights_of(net.one.weight)
        assert one is not net.one.weight
        assert other is net.one.weight


def test_what_is_added_to_a_gradient_on_its_way_stays(captured):
    net, x = Net(), torch.randn(5, 3).requires_grad_()
    found = []
    for block in (contextlib.nullcontext(), late(net)):
        with block:
            (grad,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), list(net.one.parameters())))
    torch.testing.assert_close(*found)
    assert len(captured) == 1


def test_a_pass_to_some_weights_gives_theirs(captured):
    net, x = Net(), torch.randn(5, 3)
    for wanted in ([net.two.factor], [net.one.weight]):
        want = torch.autograd.grad(net(x).sum(), wanted)
        with late(net):
            out = net(x)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), wanted), want)


def test_nothing_of_a_call_outlives_its_graph(captured):
    net, x = Net(), torch.randn(5, 3)
    with late(net) as waiting:
        out = net(x)
    gone = weakref.ref(waiting.sums)
    gc.disable()
    try:
        del waiting, out
        assert gone() is None
    finally:
        gc.enable()
