"""batch_norm_sum: the operators that it stands for, one by one."""

import pytest
import torch

import nxcore
from tests.null import fakes

NORMED = (True, False, True)


def given() -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(3, 2, 4, 5, dtype=torch.float64, generator=generator) for _ in NORMED]
    weights = torch.randn(len(NORMED), dtype=torch.float64, generator=generator)
    return [x.requires_grad_() for x in xs], weights.requires_grad_()


@pytest.mark.parametrize("op", ["reference", "kernel"])
def test_it_is_a_batch_norm_of_some_and_a_weighted_sum_of_all(op: str) -> None:
    xs, weights = given()
    session = fakes.session(fakes.backend())
    called = nxcore.ops.batch_norm_sum if op == "reference" else session.op("batch_norm_sum", backend="fake")
    out, mean, var = called(xs, weights, NORMED, 0.1)
    each = [nxcore.ops.batch_norm(x, eps=0.1) for x in xs]
    outputs = [found[0] if norm else x for x, found, norm in zip(xs, each, NORMED, strict=True)]
    want = nxcore.ops.weighted_sum(outputs, weights)
    torch.testing.assert_close(out, want)
    for row, place in enumerate((0, 2)):
        torch.testing.assert_close([mean[row], var[row]], list(each[place][1:]))
    assert not mean.requires_grad
    assert not var.requires_grad
    grad = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)
    for got, expected in zip(
        torch.autograd.grad(out, [*xs, weights], grad),
        torch.autograd.grad(want, [*xs, weights], grad),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


def test_a_gradient_that_repeats_its_values_reaches_kernels_as_dense_memory() -> None:
    xs, weights = given()
    spec = nxcore.ops.batch_norm_sum.spec
    gradient, described = spec.gradient, (tuple(xs), weights, NORMED, 0.1)
    means = torch.zeros(2, 2, dtype=torch.float64)
    expanded = torch.ones(3, 2, 1, 1, dtype=torch.float64).expand(3, 2, 4, 5)
    grad, *_ = gradient.args(expanded, (True,) * 4, *described, means, means)
    assert grad.is_contiguous()
    assert grad.equal(expanded)
    dense = torch.ones(3, 2, 4, 5, dtype=torch.float64)
    assert gradient.args(dense, (True,) * 4, *described, means, means)[0] is dense
    out = nxcore.ops.batch_norm_sum(xs, weights, NORMED, 0.1)[0]
    for got, want in zip(
        torch.autograd.grad(out.mean((2, 3)).sum(), [*xs, weights], retain_graph=True),
        torch.autograd.grad(out, [*xs, weights], dense / 20),
        strict=True,
    ):
        torch.testing.assert_close(got, want)
