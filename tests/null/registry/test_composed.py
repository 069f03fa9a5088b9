"""An operator that is made of others: a backend that has kernels for all of its parts has it too."""

from dataclasses import replace

import pytest
import torch

from nxcore.spec.kernel import Code, Kernel, accept_all, kernels, no
from nxcore.spec.problem import Problem
from tests.null import fakes

BLOCK, HALVES = "sep_conv2d_batch_norm", ("sep_conv2d", "batch_norm")
SPEC = fakes.SPECS[BLOCK]


def made(*halves: Kernel) -> dict[str, Kernel]:
    """Return what the registry has of a backend with these kernels, by label and operator."""
    found = fakes.registry(fakes.backend("fake", *halves)).backends["fake"]
    return {f"{found.label(k)} {k.op}": k for k in found.kernels}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_computes_what_the_reference_does(dtype):
    halves = [replace(fakes.kernel(op), dtypes=(torch.float32, torch.float16)) for op in HALVES]
    kernel = made(*halves)[f"fake {BLOCK}"]
    assert kernel.dtypes == (torch.float32,)
    args = SPEC.tagged("smoke")[0].build(SPEC, "cpu", dtype)
    problem = Problem.of(SPEC, args)
    assert kernel.accepts(problem)
    for got, want in zip(kernel.plan(problem)(*args), SPEC.reference(*args), strict=True):
        torch.testing.assert_close(got, want)


def test_its_gradient_runs_the_parts_that_are_asked_for():
    op = f"{BLOCK}_backward"
    spec, calls = fakes.SPECS[op], []
    halves = [
        fakes.kernel(h, lambda *args, h=h: calls.append(h) or fakes.SPECS[h].reference(*args))
        for h in ("batch_norm_backward", "sep_conv2d_backward")
    ]
    kernel = made(*halves)[f"fake {op}"]
    for sample in spec.samples:
        if sample.name not in ("only_factors", "only_the_image"):
            continue
        args = sample.build(spec, "cpu", torch.float32)
        got = kernel.plan(Problem.of(spec, args))(*args)
        for mine, want in zip(got, spec.reference(*args), strict=True):
            assert (mine is None) == (want is None)
            if want is not None:
                torch.testing.assert_close(mine, want)
    assert sorted(calls) == ["batch_norm_backward"] * 2 + ["sep_conv2d_backward"]


def test_it_refuses_what_a_part_refuses():
    convolution, norm = (fakes.kernel(op) for op in HALVES)
    norm = replace(norm, accepts=lambda p: no(f"not of {p.op}", code=Code.LAYOUT))
    problem = Problem.of(SPEC, SPEC.tagged("smoke")[0].build(SPEC, "cpu", torch.float32))
    refusal = made(convolution, norm)[f"fake {BLOCK}"].accepts(problem).refusal
    assert (refusal.code, refusal.reason) == (Code.LAYOUT, "not of batch_norm")


def test_it_claims_what_both_claim_and_has_their_variant():
    safe = {"deterministic": True, "graph_safe": True, "variant": "gpu"}
    convolution, norm = (fakes.kernel(op, **safe) for op in HALVES)
    both = made(convolution, norm)[f"fake-gpu {BLOCK}"]
    assert (both.deterministic, both.graph_safe, both.in_place_safe) == (True, True, False)
    assert not made(convolution, replace(norm, graph_safe=False))[f"fake-gpu {BLOCK}"].graph_safe


def test_half_of_it_is_none_and_a_kernel_of_its_own_stays():
    convolution, norm = (fakes.kernel(op) for op in HALVES)
    assert set(made(convolution)) == {"fake sep_conv2d"}
    assert set(made(convolution, replace(norm, variant="gpu"))) == {"fake sep_conv2d", "fake-gpu batch_norm"}
    own = fakes.kernel(BLOCK)
    assert made(convolution, norm, own)[f"fake {BLOCK}"] is own


def test_a_table_of_kernels():
    shared, other = kernels(
        "package.gpu",
        {"add": accept_all, "sum": {"accepts": no, "target": "add:plan_sum", "graph_safe": False}},
        variant="gpu",
        graph_safe=True,
    )
    assert (shared.op, shared.target, shared.variant) == ("add", "package.gpu.add:plan", "gpu")
    assert (other.op, other.target, other.accepts) == ("sum", "package.gpu.add:plan_sum", no)
    assert (shared.graph_safe, other.graph_safe) == (True, False)
