"""Calls of any shape, layout, type, values and parameters, held to the float64 truth.

The samples of a spec are named after bugs that somebody thought of; these are for the others. Numba's CPU
kernels compute at full speed; an interpreter and an emulator are given fewer and smaller calls. With
``PROPERTY_EXAMPLES`` in the environment each kernel is given as many as it says.
"""

import functools
import os
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from nxcore.registry.discovery import discover
from nxcore.spec.kernel import Kernel
from nxcore.spec.problem import Problem
from nxcore.trust.truth import agreement
from tests.null.fakes import one_shape
from tests.outside import blends, filters, norms, products  # noqa: F401  their strategies enter themselves
from tests.outside import linear_cross_entropy as _losses  # noqa: F401  enters its strategy
from tests.outside import reductions as _reductions  # noqa: F401  enters its strategies
from tests.outside import rope as _rope  # noqa: F401  enters its strategies
from tests.outside import rows as _rows  # noqa: F401  likewise
from tests.outside import scaled_dot_product_attention as _attention  # noqa: F401  likewise
from tests.outside import scans as _scans  # noqa: F401  likewise
from tests.outside.strategies import STRATEGIES, strategy_of

pytestmark = pytest.mark.slow
REGISTRY = discover(strict=True)
FULL, SMALL = (40, 20_000), (6, 1_500)
"""Examples a kernel and the most elements of a tensor: of Numba, and of what is simulated or compiles."""

KERNELS = [
    pytest.param(backend, kernel, id=f"{kernel.op}-{backend.label(kernel)}")
    for backend in REGISTRY.backends.values()
    if backend.name in ("numba", "triton", "cuda")
    for kernel in backend.kernels
    if not kernel.variant
]


def test_every_operator_has_a_strategy() -> None:
    assert {name for name, spec in REGISTRY.ops.items() if not one_shape(spec)} <= set(STRATEGIES)
    assert set(STRATEGIES) <= set(REGISTRY.ops), "a strategy is for an operator that there is"


def _placed(value: Any, device: torch.device) -> Any:
    """Put tensors on ``device``, with the strides and the offset that they have."""
    if isinstance(value, tuple):
        return tuple(_placed(v, device) for v in value)
    if not isinstance(value, torch.Tensor) or value.device == device:
        return value
    memory = value.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)
    return memory.to(device).as_strided(value.shape, value.stride(), value.storage_offset())


@functools.cache
def _planned(kernel: Kernel, problem: Problem) -> Any:
    return kernel.plan(problem)


# Torch's own, once a process; and numpy's, on which Triton's interpreter runs a softmax over NaN.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths", "ignore:All-NaN slice")
@pytest.mark.parametrize(("backend", "kernel"), KERNELS)
def test_agrees_with_float64(
    backend: Any, kernel: Kernel, device: torch.device, request: pytest.FixtureRequest
) -> None:
    device = torch.device("cpu") if backend.name == "numba" else device
    machine = REGISTRY.probe(backend, kernel)
    if not machine:
        pytest.skip(f"{backend.label(kernel)} can't run here: {machine.reason}")
    spec = REGISTRY.spec(kernel.op)
    examples, most = FULL if backend.name == "numba" else SMALL
    examples = int(os.environ.get("PROPERTY_EXAMPLES", examples))
    taken = []

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),  # slow is what an interpreter is
    )
    @hypothesis.given(data=st.data())
    def every(data: st.DataObject) -> None:
        args = _placed(data.draw(strategy_of(REGISTRY.ops[kernel.op])(most)), device)
        spec.check(*args)
        problem = Problem.of(spec, args)
        if problem.view or problem.dtype not in kernel.dtypes:
            hypothesis.event("a view, or a dtype that the kernel doesn't claim")
            return
        verdict = kernel.takes(problem)
        if not verdict:
            assert verdict.reason, "a refusal has a reason"
            hypothesis.event(f"declined: {verdict.reason}")
            return
        found = agreement(_planned(kernel, problem), spec, args)
        assert found.ok, f"{problem}: {found.reason}"
        taken.append(problem)

    every()
    request.node.user_properties.append(("calls", len(taken)))
    assert len(taken) >= examples // 4 or spec.view is not type(spec).view, "most calls are taken"
