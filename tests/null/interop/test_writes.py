"""A write after a call: no kernel's backward pass raises where torch's doesn't, and no gradient is wrong."""

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nxcore
from nxcore.expression.functions import BY_RESULT, FUNCTIONS, WRITTEN
from nxcore.interop.held import held
from nxcore.interop.library import define
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import tensors_of
from nxcore.spec.spec import OpSpec
from tests.null import fakes
from tests.null.interop.test_traces import given
from tests.table import for_each

FUNCTIONS_OF_ONE = sorted(
    name for name in WRITTEN if FUNCTIONS[name].args.startswith("v") and "v" not in FUNCTIONS[name].args[1:]
)
EXPRESSIONS = {
    **{name: f"{name}(x)" for name in FUNCTIONS_OF_ONE if FUNCTIONS[name].derivative},
    "scaled": "tanh(x) * 2",
    "gate": "silu(x) * y",
    "blend": "relu(x) * y + z",
    "quotient": "x / y",
    "product": "x * y",
    "choice": "where(x > y, x * z, y)",
    "squashed": "sigmoid(x * y)",
}


@functools.cache
def made(name: str) -> tuple[OpSpec, OpSpec, tuple[Any, ...]]:
    """Return the specs of an operator and its gradient, and a call."""
    if name in fakes.SPECS:
        spec = fakes.SPECS[name]
        sample = next(s for s in spec.samples if "smoke" in s.tags)
        return spec, fakes.SPECS[spec.gradient.op], sample.build(spec, "cpu", torch.float32)
    spec = nxcore.pointwise(EXPRESSIONS[name]).spec
    count = len(spec.expression.tensors)
    args = spec.bind(*(torch.rand(3, 4) + 0.3 for _ in range(count)))
    return spec, nxcore.op(spec.gradient.op).spec, args


def operator(name: str, **how: Any) -> Any:
    """Return the operator of a session whose backend is torch's references in disguise."""
    spec, back, _ = made(name)
    specs = list(fakes.SPECS.values()) if name in fakes.SPECS else [spec, back]
    kernels = [fakes.kernel(s.name, fakes.Counter(s.reference)) for s in specs]
    settings = Settings(policy="frozen")
    return Session(settings, fakes.registry(fakes.backend("fake", *kernels), specs=specs), fakes.QUICK).op(
        spec.name, **how
    )


def masks(tensors: list[Tensor]) -> Iterator[tuple[bool, ...]]:
    """Yield which tensors need a gradient: all, and each alone."""
    floating = [t.is_floating_point() for t in tensors]
    yield tuple(floating)
    for i in range(min(len(tensors), 6) if len(tensors) > 1 else 0):
        if floating[i]:
            yield tuple(i == j for j in range(len(tensors)))


def written(
    call: Any, args: tuple[Any, ...], mask: tuple[bool, ...], place: int | None, output: int | None
) -> Any:
    """Return the gradients of a call after a write to one input or result; None where torch raises."""
    floats = [t for t in tensors_of(args) if t.is_floating_point()]
    leaves = [t.detach().clone().requires_grad_(needed) for t, needed in zip(floats, mask, strict=True)]
    tensors = [leaf * 1 for leaf in leaves]  # a leaf that needs a gradient can't be written to
    result = call(*given(args, tensors))
    results = result if isinstance(result, tuple) else (result,)
    y = results[0] * 1.5
    with torch.no_grad():
        if place is not None:
            tensors[place].add_(1)
        if output is not None and output < len(results):
            results[output].add_(1)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    try:
        return torch.autograd.grad(y, wanted, torch.ones_like(y), allow_unused=True)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        return None


def compare(call: Any, reference: Any, args: tuple[Any, ...]) -> None:
    """Compare what becomes of writes with what becomes of them in torch."""
    floats = [t for t in tensors_of(args) if t.is_floating_point()]
    for mask in masks(floats):
        right = written(reference, args, mask, None, None)
        for place, output in [*((i, None) for i in range(len(floats))), (None, 0), (None, 1)]:
            got = written(call, args, mask, place, output)
            if got is None:
                assert written(reference, args, mask, place, output) is None, (mask, place, output)
            else:
                torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4, equal_nan=True)


NAMES = [*fakes.DIFFERENTIABLE, *EXPRESSIONS]


@for_each("name", NAMES)
def test_a_requested_backend_raises_only_where_torch_does(name):
    spec, _, args = made(name)
    op = operator(name, backend="fake")
    compare(op.run, spec.reference, args)
    result = op.run(
        *given(args, [t.detach().requires_grad_() for t in tensors_of(args) if t.is_floating_point()])
    )
    assert "Join" in fakes.first(result).grad_fn.name(), "torch's own autograd served it"


@for_each("name", sorted(BY_RESULT))
def test_torch_saves_the_result_of_these_functions(name):
    spec, _, args = made(name)
    assert spec.gradient.result
    y = written(spec.reference, args, (True,), None, 0)
    assert y is None, "torch would raise only if it saved the result"
    assert written(spec.reference, args, (True,), 0, None) is not None


@pytest.mark.parametrize("name", ["matmul", "weighted_sum", "softmax_sum"])
def test_what_is_not_read_is_not_read(name):
    spec, _, args = made(name)
    op = operator(name, backend="fake")
    floats = [t for t in tensors_of(args) if t.is_floating_point()]
    for mask in masks(floats):
        for i in range(len(floats)):
            with_nan = given(
                args, [torch.full_like(t, torch.nan) if i == j else t for j, t in enumerate(floats)]
            )
            kept = held(
                spec.reference,
                given(args, [t.detach().requires_grad_(m) for t, m in zip(floats, mask, strict=True)]),
            )
            found = written(op.run, with_nan, mask, None, None)
            if not kept.saved[i] and not any(
                torch.isnan(g).any() for g in written(spec.reference, with_nan, mask, None, None)
            ):
                assert not any(torch.isnan(g).any() for g in found)


@for_each("name", ["entropy", "scaled", "blend", "tanh", "matmul"])
def test_second_derivatives_go_through_copies_and_results(name):
    _, _, args = made(name)
    op = operator(name, backend="fake")
    floats = [t.detach().double().requires_grad_() for t in tensors_of(args)]
    assert torch.autograd.gradgradcheck(lambda *tensors: op.run(*given(args, tensors)), floats)


@for_each("name", ["entropy", "matmul", "softmax_sum", "sep_conv2d"])
def test_a_checkpoint_restores_what_is_copied(name):
    spec, _, args = made(name)
    op = operator(name, backend="fake")

    def checkpointed(*given_args: Any) -> Any:
        return checkpoint(op.run, *given_args, use_reentrant=False)

    floats = [t for t in tensors_of(args) if t.is_floating_point()]
    for mask in masks(floats):
        got = written(checkpointed, args, mask, None, None)
        torch.testing.assert_close(got, written(spec.reference, args, mask, None, None), rtol=1e-4, atol=1e-4)


@for_each("name", ["entropy", "matmul", "softmax_sum", "weighted_sum"])
def test_the_operator_of_torchs_library_raises_only_where_torch_does(session, name):
    spec, _, args = made(name)
    shell = define(session.op(name).spec)
    compare(lambda *given_args: shell(given_args), spec.reference, args)


@for_each("dtype", [torch.float16, torch.bfloat16])
@for_each("name", ["blend", "gate", "tanh", "softmax_sum", "entropy"])
def test_half_types_too(name, dtype):
    spec, _, args = made(name)
    halves = given(args, [t.to(dtype) for t in tensors_of(args)])
    op = operator(name, backend="fake")
    floats = list(tensors_of(halves))
    for mask in masks(floats):
        for place in range(len(floats)):
            if written(spec.reference, halves, mask, place, None) is not None:
                assert written(op.run, halves, mask, place, None) is not None


@for_each("module", [nn.Tanh, nn.Sigmoid, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.Softplus])
def test_an_accelerated_activation_runs_a_loop_that_torchs_runs(module):
    plain = module()
    ours = copy.deepcopy(plain)
    nxcore.accelerate(nn.Sequential(ours))
    for _ in range(12):
        grads = []
        for act in (plain, ours):
            torch.manual_seed(1)
            leaf = torch.randn(512, 1024, requires_grad=True)
            x = leaf * 1.0
            y = act(x)
            with torch.no_grad():
                x.add_(1)
            try:
                y.sum().backward()
            except RuntimeError:
                assert act is plain or not grads
            grads += [leaf.grad] * (leaf.grad is not None)
        assert len(grads) in (0, 2)
        torch.testing.assert_close(*(grads or (None, None)))


def test_turns_of_an_exploration_run_a_loop_that_torch_runs():
    spec, back, _ = made("tanh")
    kernels = [fakes.kernel(s.name, fakes.Counter(s.reference)) for s in (spec, back)]
    registry = fakes.registry(fakes.backend("fake", *kernels), specs=[spec, back])
    session = Session(Settings(policy="auto"), registry, fakes.QUICK)
    op = session.op(spec.name)
    for _ in range(200):
        leaf = torch.randn(64, 64, requires_grad=True)
        x = leaf * 1.0
        y = op(x)
        with torch.no_grad():
            x.add_(y.detach())
        y.sum().backward()
        torch.testing.assert_close(leaf.grad, 1 - y.detach() ** 2)
