"""A kernel that is wrong under one condition alone, which no key has, is convicted before it serves."""

import threading
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from nxcore.trust.conditions import moved, unheld, variants
from nxcore.trust.samples import built
from nxcore.trust.truth import Truth
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each


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


def case(op="add"):
    return built(op, SPECS[op].samples[0].name, torch.device("cpu"), torch.float32, fakes.registry())


@pytest.mark.parametrize("odd", [True, False])
def test_inputs_lie_at_odd_addresses_only_where_they_may(odd):
    met = []

    def call(*given):
        met.append(given[0].data_ptr() % 16)
        return SPECS["add"].reference(*given)

    for tried in (unheld, moved):
        assert not tried(call, case(), odd)
    assert any(met) is odd


def test_a_result_in_the_memory_of_an_earlier_one_is_compared_with_what_that_held():
    runs, kept = [], SPECS["add"].reference(*case().args)

    def call(*given):
        runs.append(1)
        return kept.copy_(SPECS["add"].reference(*given)) if len(runs) < 5 else kept.fill_(0.5)

    assert unheld(call, case()).startswith("in another thread")


def test_a_verification_beside_the_program_leaves_dynamo_on():
    counter = CompileCounter()
    function = torch.compile(lambda x: x + 1, backend=counter, fullgraph=True)
    found = []

    def call(*given):
        function(torch.ones(2))
        return SPECS["add"].reference(*given)

    tried = threading.Thread(target=lambda: found.append(moved(call, case())))
    tried.start()
    tried.join()
    assert (found, counter.frame_count) == ([""], 1)


KEYS = {
    "shape": lambda x: (x.shape, x.dtype),
    "address": lambda x: (x.data_ptr(), x.shape),
    "object": lambda x: (id(x), x.shape),
}
WHEN = {
    "odd addresses": lambda x, y, alpha: x.data_ptr() % 16,
    "offset": lambda x, y, alpha: x.storage_offset(),
    "another thread": lambda x, y, alpha: threading.current_thread() is not threading.main_thread(),
    "require a gradient": lambda x, y, alpha: x.requires_grad,
    "inference mode": lambda x, y, alpha: torch.is_inference_mode_enabled(),
    "gradients on": lambda x, y, alpha: torch.is_grad_enabled(),
    "one tensor": lambda x, y, alpha: x is y,
    "large numbers": lambda x, y, alpha: abs(alpha) > 1e3,
    "small numbers": lambda x, y, alpha: abs(alpha) < 1e-3,
}
FILLED = ("once", "under it alone", "the last")


@for_each("when", WHEN)
@pytest.mark.parametrize("filled", FILLED)
@pytest.mark.parametrize("key", KEYS)
def test_a_result_that_is_kept_from_an_earlier_call_is_wrong_under_each_condition(when, filled, key):
    kept = {}

    def call(x, y, alpha, out):
        right, mine = SPECS["add"].reference(x, y, alpha, out), KEYS[key](x)
        held, found = WHEN[when](x, y, alpha), kept.get(KEYS[key](x), right)
        if filled == "the last" or held or filled != "under it alone":
            kept[mine] = right.clone() if filled == "the last" else kept.get(mine, right.clone())
        return found.clone() if held else right

    assert unheld(call, case()), (when, filled, key)


def test_a_result_in_an_inputs_memory_is_wrong_though_it_is_equal():
    """With an ``alpha`` of 0 the sum is x, and x in its own memory changes nothing."""

    def call(x, y, alpha, out):
        right = SPECS["add"].reference(x, y, alpha, out)
        return x.detach().copy_(right) if alpha == 0 else right

    assert "must not share memory with an input" in unheld(call, case())


def test_a_kernel_of_one_result_for_all_numbers_keeps_none():
    """An ``any`` of both samples may be the same, as its reference's is."""
    same = replace(case("any"), build=lambda: case("any").args)
    assert not unheld(lambda *args: SPECS["any"].reference(*args), same)


def test_a_kernel_that_wrote_into_a_sample_convicts_no_other_one():
    first = fakes.backend("hostile", fakes.kernel("sum", an_input_elsewhere))
    session, x = fakes.session(first, fakes.backend("innocent", fakes.kernel("sum"))), torch.randn(4, 30)
    for name in ("hostile", "innocent"):
        with session.use(name):
            session.op("sum")(x, 1)
    assert [entry.kernel for entry in session.gate.quarantine] == ["hostile"]
