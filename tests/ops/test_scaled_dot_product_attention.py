"""What is true of scaled_dot_product_attention alone: its entrants, their refusals, and torch's gradients."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import nxcore
from nxcore.ops.scaled_dot_product_attention import SPEC, by_math
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.trust.truth import agreement

attend = nxcore.op("scaled_dot_product_attention")


def made(*size: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(size, dtype=torch.float64, generator=generator).to(dtype) for _ in range(3))


def on_cuda(
    size: tuple[int, ...] = (2, 3, 16, 64), dtype: torch.dtype = torch.bfloat16, **settings: Any
) -> Problem:
    """Describe a call on a device that need not exist."""
    strides = tuple(torch.empty(size, device="meta").stride())
    meta = TensorMeta(size, strides, dtype, torch.device("cuda", 0))
    key = settings.pop("key", meta)
    return Problem(SPEC, SPEC.bind(meta, key, key, **settings))


def refusals(problem: Problem) -> dict[str, str]:
    """Return the entrants' reasons, empty for those that take the call."""
    return {name: way.accepts(problem).reason for name, way in SPEC.idioms.items()}


def test_all_of_torchs_kernels_enter_on_a_device():
    assert set(refusals(on_cuda()).values()) == {""}


@pytest.mark.parametrize(
    ("problem", "refused", "why"),
    [
        (on_cuda(dropout_p=0.1), {"flash", "efficient", "cudnn", "math"}, "its numbers are torch's own"),
        (on_cuda(dtype=torch.float32), {"flash", "cudnn"}, "got torch.float32"),
        (on_cuda((2, 3, 16, 60)), {"flash", "efficient", "cudnn"}, "multiple of 8 up to .* got 60"),
        (on_cuda((2, 3, 16, 192)), {"cudnn"}, "up to 128 for E, got 192"),
        (on_cuda((3, 16, 64)), {"flash", "efficient", "cudnn"}, r"needs \(N, H, L, E\)"),
        (on_cuda(enable_gqa=True), {"flash", "efficient", "cudnn"}, "neither attn_mask nor enable_gqa"),
        (
            on_cuda(is_causal=True, key=on_cuda((2, 3, 9, 64))["query"]),
            {"flash", "cudnn"},
            "as many queries as keys",
        ),
        (
            Problem.of(SPEC, SPEC.bind(*(t.mT for t in made(1, 2, 8, 8)))),
            {"flash", "efficient", "cudnn", "math"},
            "on cuda, got cpu|contiguous queries: so is its result",
        ),
        (Problem.of(SPEC, SPEC.bind(*made(1, 2, 3, 8))), {"flash", "efficient", "cudnn"}, "on cuda, got cpu"),
    ],
)
def test_what_an_entrant_can_not_take_is_data(problem, refused, why):
    found = refusals(problem)
    assert {name for name, reason in found.items() if reason} == refused
    assert all(re.search(why, found[name]) for name in refused), found


def test_no_entrant_is_convicted_for_its_layout():
    heads = tuple(t.transpose(1, 2) for t in made(2, 16, 3, 8))
    with nxcore.policy("measure"):
        attend(*heads)
        told = str(nxcore.explain("scaled_dot_product_attention", *heads))
    assert "contiguous queries" in told
    assert "VerificationError" not in told


def test_explain_shows_every_entrant():
    told = str(nxcore.explain("scaled_dot_product_attention", *made(2, 2, 16, 8), dropout_p=0.5))
    for name in SPEC.idioms:
        assert f"torch-{name}" in told
    assert "its numbers are torch's own" in told


def test_dropout_is_torchs():
    args = made(2, 2, 16, 8)
    torch.manual_seed(3)
    found = attend(*args, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(found, functional.scaled_dot_product_attention(*args, dropout_p=0.5))


@pytest.mark.parametrize("settings", [{}, {"is_causal": True}, {"scale": 0.3}, {"mask": True}], ids=str)
def test_results_and_gradients_are_torchs(settings):
    args = [t.requires_grad_() for t in made(2, 2, 16, 8)]
    how = {k: v for k, v in settings.items() if k != "mask"}
    if "mask" in settings:
        how["attn_mask"] = torch.arange(16)[:, None] >= torch.arange(16)
    found, want = attend(*args, **how), functional.scaled_dot_product_attention(*args, **how)
    grad = torch.linspace(-1, 1, 16).view(1, 1, 16, 1).expand_as(want)
    torch.testing.assert_close(found, want)
    for mine, other in zip(*(torch.autograd.grad(out, args, grad) for out in (found, want)), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_result_of_16_bits_may_round_its_weights_and_no_more():
    args = SPEC.bind(*made(1, 2, 64, 16, dtype=torch.bfloat16))
    assert agreement(SPEC.reference, SPEC, args).ok
    wide = tuple(t.float() for t in args[:3])

    def rounded_twice(query, key, value, *_):
        scores = (query @ key.mT * 16**-0.5 * 16).round() / 16  # as in 8 bits
        return (scores.float().softmax(-1) @ wide[2]).to(query.dtype)

    assert not agreement(rounded_twice, SPEC, args).ok


def test_products_and_softmax_are_an_entrant_on_the_cpu():
    args = SPEC.bind(*made(2, 3, 33, 8), is_causal=True)
    assert agreement(by_math, SPEC, args).ok


@pytest.mark.gpu
@pytest.mark.parametrize("name", SPEC.idioms)
@pytest.mark.parametrize("causal", [False, True])
def test_torchs_kernels_agree_with_float64_on_a_device(name, causal):
    heads = (
        torch.randn(2, 100, 4, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)
    )
    args = SPEC.bind(*heads, is_causal=causal)
    assert SPEC.idioms[name].accepts(Problem.of(SPEC, args))
    found = agreement(SPEC.idioms[name], SPEC, args)
    assert found.ok, found.reason
