"""A kernel that is wrong under one condition alone, which no key has, is convicted before it serves."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from nxcore.trust.conditions import unheld, variants
from nxcore.trust.truth import Truth
from tests.null import fakes
from tests.null.fakes import SPECS


def beside_an_input(x, dim, keepdim):
    result = SPECS["sum"].reference(x, dim, keepdim)
    if x.storage_offset():
        x.as_strided((1,), (1,), x.storage_offset() - 1).zero_()
    return result


def beside_a_result(x, dim, keepdim):
    right = SPECS["sum"].reference(x, dim, keepdim)
    result = torch.empty_like(right).copy_(right)
    size = result.untyped_storage().nbytes() // result.element_size()
    if size > result.storage_offset() + result.numel():
        result.as_strided((1,), (1,), result.storage_offset() + result.numel()).zero_()
    return result


def unwritten(x, dim, keepdim):
    """Leave what is 0 to memory that happens to hold zeros."""
    right = SPECS["sum"].reference(x, dim, keepdim)
    found = torch.empty_like(right)
    return found.copy_(torch.where(found.isnan(), found, right)) if found.is_floating_point() else right


def an_input_elsewhere(x, dim, keepdim):
    """Write into an input under one condition alone: samples are shared by the kernels of an operator."""
    right = SPECS["sum"].reference(x, dim, keepdim)
    if torch.is_inference_mode_enabled():
        x.mul_(2)
    return right


def with_luck(x, dim, keepdim):
    """Leave a result in inference mode to memory that holds it from an earlier call."""
    right = SPECS["sum"].reference(x, dim, keepdim)
    if not torch.is_inference_mode_enabled():
        return right
    found = torch.empty_like(right)
    return found if found.isnan().any() else right


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (beside_an_input, "an input must be left unchanged, and the memory beside it"),
        (beside_a_result, "memory beside a result must be left unchanged"),
        (unwritten, "NaN must be where the reference has NaN"),
        (an_input_elsewhere, "an input must be left unchanged"),
        (with_luck, "in inference mode: NaN must be where the reference has NaN"),
    ],
)
def test_memory_beside_and_memory_that_was_not_written(call, why):
    session, x = fakes.session(fakes.backend("hostile", fakes.kernel("sum", call))), torch.randn(4, 30)
    with session.use("hostile"):
        torch.testing.assert_close(session.op("sum")(x, 1), x.sum(1))
    (entry,) = session.gate.quarantine
    assert why in entry.reason


@pytest.mark.parametrize("op", sorted(SPECS))
def test_torchs_own_is_right_on_every_variant(op):
    """Constrained tensors, such as indices, are never one with another; numbers keep their type."""
    from nxcore.spec.problem import Problem

    spec = SPECS[op]
    for sample in spec.tagged("smoke"):
        args = sample.build(spec, "cpu", torch.float32)
        for one in variants(spec, args, Problem.of(spec, args)):
            assert list(map(type, one.args)) == list(map(type, args))
            assert Truth.of(spec, one.args).judge(spec.reference(*one.args)).ok, one.what


@pytest.mark.parametrize("odd", [True, False])
def test_inputs_lie_at_odd_addresses_only_where_they_may(odd):
    spec, met = SPECS["add"], []
    args = spec.samples[0].build(spec, torch.device("cpu"), torch.float32)

    def call(*given):
        met.append(given[0].data_ptr() % 16)
        return spec.reference(*given)

    for others in ((), None):
        assert not unheld(call, args, Truth.of(spec, args), others, odd=odd)
    assert any(met) is odd


def test_a_result_in_the_memory_of_an_earlier_one_is_compared_with_what_that_held():
    spec, runs = SPECS["add"], []
    args = spec.samples[0].build(spec, torch.device("cpu"), torch.float32)
    kept = spec.reference(*args)

    def call(*given):
        runs.append(1)
        return kept.copy_(spec.reference(*given)) if len(runs) < 3 else kept.fill_(0.5)

    assert unheld(call, args, Truth.of(spec, args), ()).startswith("in another thread")


def test_a_verification_beside_the_program_leaves_dynamo_on():
    spec, counter = SPECS["add"], CompileCounter()
    function = torch.compile(lambda x: x + 1, backend=counter, fullgraph=True)
    args = spec.samples[0].build(spec, torch.device("cpu"), torch.float32)
    found = []

    def call(*given):
        function(torch.ones(2))
        return spec.reference(*given)

    tried = threading.Thread(target=lambda: found.append(unheld(call, args, Truth.of(spec, args), None)))
    tried.start()
    tried.join()
    assert (found, counter.frame_count) == ([""], 1)


def test_a_kernel_that_wrote_into_a_sample_convicts_no_other_one():
    first = fakes.backend("hostile", fakes.kernel("sum", an_input_elsewhere))
    session, x = fakes.session(first, fakes.backend("innocent", fakes.kernel("sum"))), torch.randn(4, 30)
    for name in ("hostile", "innocent"):
        with session.use(name):
            session.op("sum")(x, 1)
    assert [entry.kernel for entry in session.gate.quarantine] == ["hostile"]
