"""What is true of entropy alone: its range, probabilities of 0, and its gradient, on every backend."""

import math

import pytest
import torch

from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())


@every_backend
def test_equal_logits_are_the_least_decided(backend: str | None, device: torch.device) -> None:
    found = operator("entropy", backend)(torch.full((5, 8), 900.0, device=device))
    torch.testing.assert_close(found, torch.full((5,), math.log(8), device=device))


@every_backend
def test_what_is_impossible_adds_nothing_also_to_gradients(backend: str | None, device: torch.device) -> None:
    some = torch.randn(6, 5, device=device)
    logits = torch.cat([some, torch.full((6, 3), -torch.inf, device=device)], 1).requires_grad_()
    found = operator("entropy", backend)(logits)
    found.backward(torch.linspace(-1, 2, 6, device=device))
    alone = some.double().requires_grad_()
    want = torch.distributions.Categorical(logits=alone).entropy()
    want.backward(torch.linspace(-1, 2, 6, device=device).double())
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits.grad[:, :5].double(), alone.grad, rtol=1e-5, atol=1e-6)
    assert not logits.grad[:, 5:].any()


@every_backend
def test_an_entropy_near_0_keeps_its_digits(backend: str | None, device: torch.device) -> None:
    logits = torch.tensor([[0.0, -12.0], [-12.0, 0.0]], device=device)
    found = operator("entropy", backend)(logits)
    want = torch.distributions.Categorical(logits=logits.double()).entropy()
    torch.testing.assert_close(found.double(), want, rtol=2e-3, atol=0)
