"""Tests of many rows, and the tests of the kit that take several steps: what fails is named, and all runs."""

import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nxcore.spec.kernel import no
from nxcore.testing import test_kernels as kit
from nxcore.testing.cell import Cell, cells
from nxcore.testing.rules import agrees_with_float64, repeats_itself, writes_in_place
from tests import table
from tests.null import fakes
from tests.stand_ins import stand_in
from tests.table import for_each

table_has = stand_in(table)


def test_a_failure_has_the_name_of_its_row_and_the_others_run():
    ran = []

    @for_each("n", [1, 2, 3])
    @for_each(("what", "more"), [("a", 1), pytest.param("b", 2, id="second")])
    def test(n, what, more):
        ran.append((n, what, more))
        assert (n, what) != (2, "b"), "no"

    with pytest.raises(AssertionError, match="no") as caught:
        test()
    assert caught.value.__notes__ == ["in the row second", "in the row 2"]
    assert ran == [(n, what, more) for n in (1, 2, 3) for what, more in (("a", 1), ("b", 2))]
    assert test.rows == ["1", "2", "3", "a-1", "second"]


def test_several_failures_are_a_group():
    @for_each("n", range(4), ids=lambda n: f"row {n}")
    def test(n):
        assert n < 2

    with pytest.raises(BaseExceptionGroup, match="2 of 4 rows") as caught:
        test()
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["in the row row 2"],
        ["in the row row 3"],
    ]


def test_a_case_is_skipped_where_each_row_is():
    @for_each("n", [1, 2])
    def test(n, least):
        if n >= least:
            pytest.skip(f"{n} is too much")

    test(least=2)
    with pytest.raises(pytest.skip.Exception, match="1 is too much; 2 is too much"):
        test(least=1)


@for_each("turn", [0, 1])
def test_a_row_has_numbers_patches_and_a_folder_of_its_own(turn, monkeypatch, tmp_path):
    assert not hasattr(table, "patched")
    monkeypatch.setattr(table, "patched", True, raising=False)
    (tmp_path / "made").mkdir()
    seen = (torch.rand(1).item(), random.random())
    table.draw_anew(f"test_a_row_has_numbers_patches_and_a_folder_of_its_own[{turn}]")
    assert seen == (torch.rand(1).item(), random.random())


def test_a_row_has_no_marks():
    with pytest.raises(ValueError, match="a row has no marks"):
        for_each("n", [pytest.param(1, marks=pytest.mark.slow)])


def test_one_operator_may_be_asked_for(table_has):
    ran = []

    @for_each("op", ["add", "sum"])
    def test(op):
        ran.append(op)

    table_has(ONLY=[re.compile("add")])
    test()
    assert ran == ["add"]
    table_has(ONLY=[re.compile("test_sum")])  # what the file's own name asks for
    test()
    assert ran == ["add", "add", "sum"]


def cell(op: str = "add", sample: str = "", call: Any = None, **how: Any) -> Cell:
    kernel = fakes.kernel(op, call, dtypes=(torch.float32,), **how)
    (found,) = (
        c for c in cells(fakes.registry(fakes.backend("one", kernel)), backends=["one"]) if c.kernel.op == op
    )
    return found.on(next(s for s in found.spec.samples if s.name == sample)) if sample else found


@pytest.fixture
def request_of_the_kit() -> Any:
    """Stand in for pytest's request of a test of the kit: no option, and no list of refusals."""
    option = SimpleNamespace(
        nxcore_require=[], nxcore_isolated=False, nxcore_declines=None, nxcore_write_declines=False
    )
    config = SimpleNamespace(
        option=option,
        pluginmanager=SimpleNamespace(has_plugin=lambda name: True),
        invocation_params=SimpleNamespace(dir=Path()),
        getini=lambda name: [],
    )
    return SimpleNamespace(config=config, node=SimpleNamespace(user_properties=[]))


def test_a_kernels_steps_fail_together_and_each_is_reported(request_of_the_kit):
    wrong = cell(sample="transposed", call=lambda x, y, alpha, out: torch.add(x, y) * 0)
    steps = [
        (agrees_with_float64, wrong),
        (repeats_itself, cell()),
        (agrees_with_float64, cell(sample="transposed")),
    ]
    with pytest.raises(pytest.fail.Exception, match=r"agrees_with_float64 \(sample transposed\): ") as caught:
        kit.test_rules(steps, request_of_the_kit)
    assert caught.value.msg.count("\n") == 0, "one step is wrong"
    found = [value["outcome"] for _, value in request_of_the_kit.node.user_properties]
    assert found == ["wrong", "declined", "agreed"]


def test_a_kernel_that_raises_is_shown_and_its_other_steps_are_taken(request_of_the_kit):
    broken = cell(sample="transposed", call=fakes.raising(RuntimeError("boom")))
    with pytest.raises(pytest.fail.Exception, match="boom"):
        kit.test_samples([(agrees_with_float64, broken), (repeats_itself, broken)], request_of_the_kit)
    assert len(request_of_the_kit.node.user_properties) == 2


def test_a_kernel_is_skipped_where_no_step_has_anything_to_run(request_of_the_kit):
    none = cell(accepts=lambda problem: no("never"))
    with pytest.raises(pytest.skip.Exception, match=r"declined: doesn't claim .*in_place_safe"):
        kit.test_rules([(repeats_itself, none), (writes_in_place, none)], request_of_the_kit)
    kit.test_rules(
        [(repeats_itself, none), (agrees_with_float64, cell(sample="transposed"))], request_of_the_kit
    )
