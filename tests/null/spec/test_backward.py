"""The backward operator of another: what is derived is what somebody would write."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.spec.backward import backward_of
from nxcore.spec.sample import Sample, rand
from nxcore.spec.spec import Cost, Way
from tests.null import fakes

FORWARD = fakes.SPECS["entropy"]
DERIVED = fakes.SPECS["entropy_backward"]


def test_it_takes_the_gradient_and_the_arguments():
    assert DERIVED.name == "entropy_backward"
    assert [p.name for p in DERIVED.params] == ["grad", "logits"]
    assert FORWARD.gradient.op == DERIVED.name


def test_each_sample_has_a_gradient_in_front():
    derived = {s.name: s for s in DERIVED.samples}
    for sample in FORWARD.samples:
        assert derived[sample.name].args[1:] == sample.args
        assert derived[sample.name].tags == sample.tags
        grad, logits = derived[sample.name].build(DERIVED, "cpu", torch.float32)
        assert grad.shape == logits.shape[:-1]
    assert "stride_zero_grad" in derived


@pytest.mark.parametrize("case", DERIVED.errors, ids=lambda case: case.name)
def test_each_error_is_raised(case):
    with pytest.raises((InvalidInputError, TypeError), match=case.match):
        DERIVED.check(*case.build(DERIVED))


def test_its_errors_are_the_forward_ones_and_those_of_the_gradient():
    names = {e.name for e in DERIVED.errors}
    assert names == {e.name for e in FORWARD.errors} | {
        "grad_of_wrong_shape",
        "grad_is_no_tensor",
        "grad_elsewhere",
    }


def test_its_ways_cut_the_gradient_as_the_result():
    spec = dataclasses.replace(FORWARD, ways=lambda logits: (Way((0,), 0), Way((None,), None)))
    made = backward_of(
        spec,
        DERIVED.reference,
        shape=lambda logits: logits.shape[:-1],
        cost=lambda *args: Cost(0, 0),
        magnitude=DERIVED.magnitude,
        samples=(Sample("more", (rand(3), rand(3, 4))),),
        terms=lambda *args: 7,
    )
    assert made.ways(None, None) == (Way((0, 0), 0),)
    assert made.samples[-1].name == "more"
    assert made.terms() == 7
    assert DERIVED.terms(None, torch.ones(3, 5)) == FORWARD.terms(torch.ones(3, 5)) == 5
