"""The ways to divide a call that a spec declares: results of some parts are the parts of the call's."""

import dataclasses
from typing import Any

import pytest
import torch

from nxcore.trust import rows
from tests.null import fakes
from tests.table import for_each

WHOLE = {
    name
    for name, spec in fakes.SPECS.items()
    if spec.whole or all(spec.view(*s.build(spec, "cpu", torch.float32)) for s in spec.tagged("smoke"))
}
"""Operators whose calls don't divide, as they say, and those whose results are views."""
ENDLESS = frozenset({"bench", "huge", "degenerate"})


def cases() -> list[Any]:
    return [
        pytest.param(name, sample.name, id=f"{name}-{sample.name}")
        for name, spec in fakes.SPECS.items()
        for sample in spec.samples
        if name not in WHOLE and not sample.tags & ENDLESS
    ]


def test_these_operators_divide_and_no_other() -> None:
    divided = {
        name
        for name, spec in fakes.SPECS.items()
        if any(spec.ways(*s.build(spec, "cpu", torch.float32)) for s in spec.tagged("smoke"))
    }
    assert {*fakes.SPECS} - divided == WHOLE


@for_each(("name", "sample"), cases())
def test_the_results_of_the_parts_are_the_calls(name: str, sample: str) -> None:
    spec = fakes.SPECS[name]
    given = fakes.build(name, sample, torch.float64)
    args = spec.settled(*given)
    if not all(t.numel() for t in fakes.leaves(args)):
        return
    result = spec.reference(*given)
    for way in spec.ways(*args):
        if {way.result, *way.results} == {None}:
            continue
        alone = dataclasses.replace(spec, ways=lambda *_, way=way: (way,))
        found = rows.rows(alone, args, result, lambda n: n // 2, 0)
        assert found is not None
        right = found.right(spec, found.of(args), result)
        for one, other in zip(found.results(result, right), right, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
