"""The backward operator of another: what is derived is what somebody would write."""

import dataclasses

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.spec.backward import backward_of
from nxcore.spec.sample import Sample, rand
from nxcore.spec.spec import REQUIRED, Cost, Param, Way
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


def two_gradients(**more):
    """A backward operator of the logits and of a saved tensor."""
    logits = FORWARD.params[0]
    return backward_of(
        FORWARD,
        lambda grad, logits, kept, output_mask: (grad, kept),
        params=(logits, Param("kept", "tensor", keyword=True)),
        check=lambda logits, kept: None,
        shape=lambda logits, kept: logits.shape[:-1],
        cost=FORWARD.cost,
        magnitude=FORWARD.magnitude,
        given=lambda s: None if s.name == "nan" else Sample(s.name, (rand(3), *s.args, rand(3)), tags=s.tags),
        **more,
    )


def test_params_and_a_mask_of_several_gradients_are_the_signature():
    spec = two_gradients(gradients=2)
    assert [(p.name, p.default, p.keyword) for p in spec.params[2:]] == [
        ("kept", REQUIRED, False),
        ("output_mask", (True, True), False),
    ]
    arguments = torch.ones(3), torch.ones(3, 4), torch.ones(3)
    spec.check(*arguments, (True, False))
    for mask, match in ((None, "got None"), ((True,), "must have 2 entries, got 1")):
        with pytest.raises(InvalidInputError, match=match):
            spec.check(*arguments, mask)


def test_the_number_of_gradients_may_depend_on_the_arguments():
    spec = two_gradients(gradients=lambda logits, kept: kept.ndim)
    assert spec.params[-1].default is None
    spec.check(torch.ones(3), torch.ones(3, 4), torch.ones(3), None)
    with pytest.raises(InvalidInputError, match="output_mask must have 3 entries, got 2"):
        spec.check(torch.ones(3), torch.ones(3, 4), torch.ones(1, 1, 3), (True, True))


def test_the_dtype_is_compared_on_request_alone():
    half, logits, kept = torch.ones(3).half(), torch.ones(3, 4), torch.ones(3)
    two_gradients().check(half, logits, kept)
    with pytest.raises(InvalidInputError, match=r"dtype of logits, torch.float32, got torch.float16"):
        two_gradients(same_dtype=True).check(half, logits, kept)


def test_given_makes_the_samples_and_other_parameters_leave_out_the_forward_errors():
    spec = two_gradients(gradients=2)
    assert [s.name for s in spec.samples] == [s.name for s in FORWARD.samples if s.name != "nan"]
    assert {e.name for e in spec.errors} == {
        "grad_of_wrong_shape",
        "grad_is_no_tensor",
        "grad_elsewhere",
        "short_mask",
        "not_a_mask",
    }
