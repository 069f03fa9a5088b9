"""batch_norm: what it keeps has no gradient, and a variance that cancels is refused."""

import pytest
import torch

from nxcore.trust.truth import agreement
from tests.null import fakes
from tests.table import for_each

SPEC = fakes.SPECS["batch_norm"]


def image(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def test_what_is_kept_of_the_results_has_no_gradient() -> None:
    op = fakes.session(fakes.backend()).op("batch_norm", backend="fake")
    (y, mean, var), saved = fakes.saved_by(op, x := image(3, 2, 4), image(2), image(2))
    assert y.requires_grad
    assert not mean.requires_grad
    assert not var.requires_grad
    assert len(saved) == 4, "x, weight, mean and var"
    torch.testing.assert_close([var, mean], list(torch.var_mean(x.detach(), (0, 2))))


def test_without_factors_gradients_are_torchs() -> None:
    op = fakes.session(fakes.backend()).op("batch_norm", backend="fake")
    x = image(3, 2, 4, 3)
    assert torch.autograd.gradcheck(lambda x: op(x, eps=0.1)[0], x)
    assert torch.autograd.gradgradcheck(lambda x: op(x, eps=0.1)[0], x)


@pytest.mark.parametrize("centred", [True, False])
def test_a_sum_of_squares_less_the_square_of_a_sum_is_refused(centred: bool) -> None:
    def statistics(x: torch.Tensor, *rest: object) -> tuple[torch.Tensor, ...]:
        y, mean, _ = SPEC.reference(x)
        count = x.numel() // x.shape[1]
        squares = (x - mean.view(1, -1, 1, 1)).square() if centred else x.square()
        var = squares.mean((0, 2, 3)) - (0.0 if centred else mean.square())
        return y, mean, var * (count / (count - 1))

    sample = next(s for s in SPEC.samples if s.name == "mean_far_from_0")
    args = sample.build(SPEC, "cpu", torch.float32)
    assert agreement(statistics, SPEC, args).ok == centred


def test_an_infinite_mean_stays_infinite() -> None:
    x = torch.ones(2, 2, 3, 3)
    x[0, 0, 0, 0] = torch.inf
    y, mean, var = SPEC.reference(x)
    assert mean.tolist() == [torch.inf, 1.0]
    assert y[:, 0].isnan().all()
    assert var.isnan().tolist() == [True, False]


@for_each("seed", range(20))
def test_torchs_own_passes_where_a_mean_is_close_to_zero(seed: int) -> None:
    """The error of such a mean is that of its terms."""
    x = torch.randn(9, 64, 1, generator=torch.Generator().manual_seed(seed))
    found = agreement(SPEC.reference, SPEC, (x, None, None, 1e-5))
    assert found.ok, found.reason
