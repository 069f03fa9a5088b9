"""The conformance kit: a right kernel keeps every rule, and each rule refuses what it is there for."""

import itertools
import json
import os
import sys
import time

import pytest
import torch

from nxcore.errors import InvalidInputError, UnknownBackendError, UnknownOperatorError
from nxcore.plugin import Param, Sample, rand
from nxcore.spec.kernel import YES, no
from nxcore.testing import Declined, Inapplicable, Row, examine, rules
from nxcore.testing.cell import Broken, cells
from tests.hostile.leaving import EFFECTS, leaving
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

pytest_plugins = "pytester"

OWN, F32 = os.getpid(), (torch.float32,)
VIEWS = ("sum_backward", "mean_backward", "sum_to_size_backward", "global_avg_pool2d_backward")
HELD = {rule.__name__ for rule in (*rules.OF_A_SAMPLE, *rules.OF_A_TYPE, *rules.OF_A_KERNEL)}


def loopback(*ops: str, name: str = "loop", **how):
    """A registry of one backend: torch's reference in disguise."""
    how = {"dtypes": F32, "deterministic": True, "in_place_safe": True} | how
    return fakes.registry(fakes.backend(name, *(fakes.kernel(op, **how) for op in ops or SPECS)))


def hostile(op: str, call=None, **how) -> Row:
    """Return how a kernel of one operator ended."""
    how = {"dtypes": F32} | how
    return examine(fakes.registry(fakes.backend("hostile", fakes.kernel(op, call, **how))))[0]


def alone(**how):
    """A registry of the reference of add in disguise, and its one cell."""
    return next(cells(loopback("add", **how)))


# A kernel a rule, right in all else as far as that goes.


def drops_alpha(x, y, alpha, out):
    return torch.add(x, y, out=out)


def writes_into_an_input(x, y, alpha, out):
    result = torch.add(x, y, alpha=alpha, out=out)
    x.add_(1)
    return result


def returns_doubles(x, dim, keepdim):
    return SPECS["sum"].reference(x.double(), dim, keepdim)


def returns_it_transposed(x, y, alpha, out):
    result = torch.add(x, y, alpha=alpha)
    return result.mT.contiguous().mT if out is None and x.ndim > 1 else torch.add(x, y, alpha=alpha, out=out)


def leaves_the_last_element_out(x, y, alpha, out):
    right = torch.add(x, y, alpha=alpha)
    result = torch.empty_like(right) if out is None else out
    places = torch.arange(right.numel() - 1)
    result.view(-1)[places] = right.reshape(-1)[places]
    return result


def ignores_out(x, y, alpha, out):
    return torch.add(x, y, alpha=alpha)


def a_bit_off_every_second_time():
    count = itertools.count()

    def call(x, dim, keepdim):
        return SPECS["sum"].reference(x, dim, keepdim) * (1 + (next(count) % 2) * 2.0**-23)

    return call


def _beyond(tensor):
    """Return the element after the last, where memory goes on: what a missing mask would touch."""
    after = tensor.storage_offset() + tensor.numel()
    return tensor.as_strided((1,), (1,), after) if after * 4 < tensor.untyped_storage().nbytes() else None


def reads_one_more(x, dim, keepdim):
    more = _beyond(x)
    return SPECS["sum"].reference(x, dim, keepdim) + (0 if more is None else float(more) * 0)


def writes_one_more(x, dim, keepdim):
    right = SPECS["sum"].reference(x, dim, keepdim)
    result = torch.empty_like(right).copy_(right)
    if (more := _beyond(result)) is not None:
        more.fill_(1)
    return result


def writes_one_more_at_first():
    calls = itertools.count()
    return lambda *args: (SPECS["sum"].reference if next(calls) else writes_one_more)(*args)


def plans_its_result(problem):
    result = problem.outputs.empty()
    return lambda x, dim, keepdim: result.copy_(SPECS["sum"].reference(x, dim, keepdim))


def remembers_by_address():
    known = {}

    def call(x, dim, keepdim):
        key = (x.data_ptr(), x.shape, x.stride(), dim, keepdim)
        if key not in known:
            known[key] = SPECS["sum"].reference(x, dim, keepdim)
        return known[key].clone()

    return call


def plans_its_address(problem):
    bound = []

    def call(x, dim, keepdim):
        bound.append(x)
        return SPECS["sum"].reference(bound[0], dim, keepdim)

    return call


def plans_its_number(problem):
    bound = []

    def call(x, y, alpha, out):
        bound.append(alpha)
        return torch.add(x, y, alpha=bound[0], out=out)

    return call


def gives_zeros_for_gradients(x, dim, keepdim):
    return SPECS["sum"].reference(x.detach() * (not x.requires_grad), dim, keepdim)


def clears_out_first(x, y, alpha, out):
    return torch.add(x, y, alpha=alpha) if out is None else torch.add(x, y, alpha=alpha, out=out.zero_())


def rounds_to_tf32(x, dim, keepdim):
    mantissa = (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
    return SPECS["sum"].reference(torch.where(x.isfinite(), mantissa, x), dim, keepdim).contiguous()


def compiles_at_every_call(x, dim, keepdim):
    until = time.thread_time() + 0.006
    while time.thread_time() < until:
        pass
    return SPECS["sum"].reference(x, dim, keepdim)


def changes_its_mind():
    count = itertools.count()
    return lambda problem: no("not now") if next(count) % 3 == 2 else YES


def wrong(when):
    def call(*args):
        right = SPECS["sum"].reference(*args)
        return right + 1 if when() else right

    return call


def when_compiled():
    frame = sys._getframe()
    while frame and "torch/_dynamo" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


BREAKS = {
    "agrees_with_float64": lambda: hostile("add", drops_alpha),
    "leaves_inputs_alone": lambda: hostile("add", writes_into_an_input),
    "has_torchs_layout": lambda: hostile("sum", returns_doubles),
    "writes_every_element": lambda: hostile("add", leaves_the_last_element_out),
    "writes_into_out": lambda: hostile("add", ignores_out),
    "raises_nothing": lambda: hostile("sum", fakes.raising(RuntimeError("boom"))),
    "gives_reasons": lambda: hostile("sum", accepts=lambda problem: no("")),
    "takes_a_smoke_sample": lambda: hostile("sum", accepts=lambda problem: no("never")),
    "answers_equal_problems_alike": lambda: hostile("sum", accepts=changes_its_mind()),
    "repeats_itself": lambda: hostile("sum", a_bit_off_every_second_time(), deterministic=True),
    "reads_no_further": lambda: hostile("sum", reads_one_more),
    "stays_within_its_output": lambda: hostile("sum", writes_one_more),
    "keeps_earlier_results": lambda: hostile("sum", planner=plans_its_result),
    "reads_new_data": lambda: hostile("sum", remembers_by_address()),
    "reads_moved_data": lambda: hostile("sum", planner=plans_its_address),
    "reads_numbers_anew": lambda: hostile("add", planner=plans_its_number),
    "takes_tensors_that_need_gradients": lambda: hostile("sum", gives_zeros_for_gradients),
    "writes_in_place": lambda: hostile("add", clears_out_first, in_place_safe=True),
    "reaches_its_precision": lambda: hostile("sum", rounds_to_tf32),
    "returns_promptly": lambda: hostile("sum", compiles_at_every_call),
    "leaves_the_process_alone": lambda: hostile(
        "sum", leaving(SPECS["sum"].reference, EFFECTS["os.getcwd()"])
    ),
    "agrees_when_compiled": lambda: hostile("sum", wrong(when_compiled)),
    "agrees_in_a_forked_child": lambda: hostile("sum", wrong(lambda: os.getpid() != OWN)),
}
ONLY = {  # what a kernel is wrong in, and nothing else
    "writes_into_out",
    "gives_reasons",
    "answers_equal_problems_alike",
    "has_torchs_layout",
    "repeats_itself",
    "reads_no_further",
    "stays_within_its_output",
    "keeps_earlier_results",
    "takes_tensors_that_need_gradients",
    "writes_in_place",
    "returns_promptly",
    "agrees_when_compiled",
    "agrees_in_a_forked_child",
}


@for_each("op", SPECS)
def test_the_reference_in_disguise_keeps_every_rule(op):
    row, *parts = examine(loopback(op))
    assert all(part.op != op for part in parts), "kernels that are made of it"
    assert row.broken == ()
    assert row.outcome == "verified"
    assert row.samples
    assert set(row.declined) <= {"doesn't claim to be graph_safe"}, "asked on CUDA alone"
    assert row.microseconds or op in VIEWS


@for_each("rule", BREAKS)
def test_each_rule_refuses_what_it_is_there_for(rule):
    row = BREAKS[rule]()
    assert row.outcome == "wrong"
    assert rule in row.rules, row.broken
    if rule in ONLY:
        assert set(row.rules) <= {rule, "takes_a_smoke_sample", "passes_opcheck"}, row.broken
    assert str(row.broken[0]) == row.reason


def test_the_first_call_too_stays_within_its_output():
    kernel = fakes.kernel("sum", writes_one_more_at_first(), dtypes=F32)
    (cell,) = cells(fakes.registry(fakes.backend("hostile", kernel)), ops=["sum"], backends=["hostile"])
    with pytest.raises(Broken, match="it wrote outside of what it allocated"):
        rules.stays_within_its_output(cell)


def test_no_rule_is_without_a_kernel_that_breaks_it():
    assert set(BREAKS) >= HELD - {"passes_opcheck"}


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("accepts raised", {"accepts": fakes.raising(ValueError("no idea"))}),
        ("its planner raised", {"planner": fakes.raising(ValueError("no idea"))}),
        ("raised ValueError", {"call": fakes.raising(ValueError("no idea"))}),
    ],
)
def test_what_raises_is_told_with_its_place(where, how):
    row = hostile("sum", **how)
    found = next(f for f in row.broken if f.rule == "raises_nothing")
    assert where in found.message
    assert "no idea" in found.message


def test_what_is_no_tensor_is_wrong_and_ends_nothing():
    assert hostile("sum", lambda x, dim, keepdim: "no tensor").outcome == "wrong"
    row = hostile("sum", lambda x, dim, keepdim: torch.sparse_coo_tensor(size=(3,)))
    assert row.outcome == "wrong"


def test_a_transposed_result_is_told_from_a_wrong_one():
    assert hostile("add", returns_it_transposed).rules == ("has_torchs_layout", "passes_opcheck")


def test_opcheck_is_of_the_kernel_itself():
    row = hostile("sum", lambda x, dim, keepdim: torch.sum(x.mul_(2), dim, keepdim=keepdim))
    assert "passes_opcheck" in row.rules
    rules.passes_opcheck(alone())
    assert not hasattr(torch.ops.nxcore_opcheck, "add")


def test_opcheck_needs_a_schema():
    def reference(x: torch.Tensor, way) -> torch.Tensor:
        """Return ``2 * x``."""
        return 2 * x

    spec = fakes.twice(
        params=(Param("x", "tensor"), Param("way", "static")),
        reference=reference,
        samples=(Sample("s", (rand(9), "up"), tags=frozenset({"smoke"})),),
        check=lambda x, way: None,
    )
    kernel = fakes.kernel("twice", lambda x, way: 2 * x, dtypes=F32)
    (cell,) = cells(fakes.registry(fakes.backend("fake", kernel), specs=[spec]), backends=["fake"])
    with pytest.raises(Inapplicable, match="torch has no schema for twice: way has no annotation"):
        rules.passes_opcheck(cell)


def test_a_coarser_class_is_held_to_itself():
    row = hostile("sum", rounds_to_tf32, precision="tf32")
    assert not {"agrees_with_float64", "reaches_its_precision"} & set(row.rules), row.broken


def test_claims_that_are_not_made_are_declined():
    cell = alone(deterministic=False, in_place_safe=False)
    for rule, claim in ((rules.repeats_itself, "deterministic"), (rules.writes_in_place, "in_place_safe")):
        with pytest.raises(Declined, match=f"doesn't claim to be {claim}"):
            rule(cell)


def test_a_rule_takes_the_sample_that_it_is_given():
    cell = alone()
    (sample,) = [s for s in SPECS["add"].samples if s.name == "transposed"]
    assert cell.on(sample).first().sample is sample
    assert rules.agrees_with_float64(cell.on(sample)) < 1e-6
    with pytest.raises(ValueError, match="add-loop-float32 has no sample"):
        cell.build()


def test_fresh_memory_is_as_it_was_after_the_rules():
    examine(loopback("add"))
    assert not torch.are_deterministic_algorithms_enabled()


def test_rows_are_plain_data():
    row = hostile("add", drops_alpha)
    assert Row.from_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_a_machine_that_says_no_declines_the_row():
    away = fakes.backend("away", fakes.kernel("add", dtypes=F32), probe=lambda: no("no GPU"))
    (row,) = examine(fakes.registry(away))
    assert (row.outcome, row.reason) == ("declined", "no GPU")


def test_what_is_asked_for_must_exist():
    found = loopback("add")
    assert [r.op for r in examine(found, ops=["add"], backends=["loop"], dtypes=["float32"])] == ["add"]
    with pytest.raises(UnknownOperatorError):
        examine(found, ops=["ad"])
    with pytest.raises(UnknownBackendError, match="did you mean 'loop'"):
        examine(found, backends=["lop"])
    with pytest.raises(InvalidInputError, match="no kernel takes dtype 'float23'"):
        examine(found, dtypes=["float23"])


def test_steps_are_told():
    seen = []
    examine(loopback("add", "sum"), advance=lambda *step: seen.append(step))
    assert seen == [("add loop float32", 0, 2), ("sum loop float32", 1, 2), ("done", 2, 2)]
