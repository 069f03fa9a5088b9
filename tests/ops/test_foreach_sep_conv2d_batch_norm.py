"""Separable convolutions on lists: what single operators compute, and gradients that numbers confirm."""

import pytest
import torch

import nxcore.ops

SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
OP = "foreach_sep_conv2d_batch_norm"
WINDOW = ((1, 1, 1), (1, 2, 2), (1, 1, 2))


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def tensors():
    """Return images, filters and points of three convolutions; the last two are of one image."""
    x, y = double(2, 2, 5, 4), double(2, 2, 5, 4)
    return [
        x,
        y,
        y,
        double(2, 1, 3, 3),
        double(2, 1, 5, 5),
        double(2, 1, 3, 3),
        *(double(3, 2, 1, 1) for _ in range(3)),
    ]


class Convolutions(torch.autograd.Function):
    """Both operators, as a caller composes them."""

    @staticmethod
    def forward(ctx, normed, *given):
        with torch.no_grad():
            lists = given[:3], given[3:6], given[6:]
            outs, ys, *kept = SPECS[OP].reference(*lists, *WINDOW, normed)
        ctx.normed, ctx.given, ctx.kept = normed, lists, (ys, *kept)
        return outs

    @staticmethod
    def backward(ctx, *grads):
        (ys, *kept), backward = ctx.kept, SPECS[f"{OP}_backward"].reference
        with torch.no_grad():
            found = backward(grads, *ctx.given, ys, *WINDOW, *kept, ctx.normed)
        return None, *(grad for each in found for grad in each)


NORMED = [None, (True, False, True), (False,) * 3]
MIXED_FIRST = [
    normed if normed and any(normed) else pytest.param(normed, marks=pytest.mark.slow) for normed in NORMED
]


@pytest.mark.parametrize("normed", MIXED_FIRST, ids=str)
def test_the_gradients_are_those_of_the_results(normed):
    torch.manual_seed(0)
    assert torch.autograd.gradcheck(lambda *given: Convolutions.apply(normed, *given), tensors())


@pytest.mark.parametrize("normed", NORMED, ids=str)
def test_each_result_is_that_of_the_single_operator(normed):
    torch.manual_seed(0)
    given = tensors()
    outs, ys, mean, var = SPECS[OP].reference(given[:3], given[3:6], given[6:], *WINDOW, normed)
    row = 0
    for i, norm in enumerate(normed or (True,) * 3):
        one = (*given[i::3], *(numbers[i] for numbers in WINDOW))
        if norm:
            want = SPECS["sep_conv2d_batch_norm"].reference(*one)
            torch.testing.assert_close((outs[i], ys[row], mean[row], var[row]), want, rtol=0, atol=0)
            row += 1
        else:
            torch.testing.assert_close(outs[i], SPECS["sep_conv2d"].reference(*one), rtol=0, atol=0)
    assert len(ys) == row
    assert (mean is None) == (var is None) == (row == 0)


@pytest.mark.parametrize("op", [OP, f"{OP}_backward"])
def test_what_several_convolutions_cost_is_what_each_does(op):
    """One for each sample: the sums of the costs of the single operators."""
    spec = SPECS[op]
    args = spec.tagged("smoke")[0].build(spec, "cpu", torch.float32)
    assert spec.cost(*args).flops > 0
    twice = [values * 2 if isinstance(values, tuple) else values for values in args]
    for i, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            twice[i] = torch.cat([value, value])
    assert spec.cost(*twice).flops == 2 * spec.cost(*args).flops
