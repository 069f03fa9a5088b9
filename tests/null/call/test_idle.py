"""A call that has nothing to compute: told once, by the operator, and no kernel is asked."""

import dataclasses

import pytest
import torch

from nxcore.errors import UnsupportedProblemError
from nxcore.spec.problem import Problem
from tests.null import fakes
from tests.null.calls import problem
from tests.table import for_each

IMAGE, FILTER, PAIR = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 1, 1), (torch.ones(4), torch.ones(4))


@for_each(
    ("op", "args", "why"),
    [
        ("add", (torch.ones(0, 3), torch.ones(3)), "nothing to compute: x has shape (0, 3)"),
        (
            "softmax_sum",
            ((torch.ones(0), torch.ones(0)), torch.ones(2)),
            "nothing to compute: xs has shape (0,)",
        ),
        ("sum_to_size", (torch.ones(4), (4,)), "nothing to add up: x has that size"),
        ("sum_to_size_backward", (torch.ones(4), torch.Size((4,))), ""),
        (
            "add_backward",
            (torch.ones(4), (4,), (4,)),
            "nothing to add up: no operand with a requested gradient was broadcast",
        ),
        (
            "softmax_sum_backward",
            (torch.ones(4), PAIR, torch.ones(2), (False, False, False)),
            "nothing to compute: output_mask requests no gradient",
        ),
        (
            "depthwise_conv2d_backward",
            (IMAGE, IMAGE, FILTER, 1, 0, 1, (False, False)),
            "nothing to compute: output_mask requests no gradient",
        ),
        ("depthwise_conv2d_backward", (IMAGE, IMAGE, FILTER, 1, 0, 1, (False, True)), ""),
        ("add", (torch.ones(2, 3), torch.ones(3)), ""),
    ],
)
def test_why_there_is_nothing_to_compute(op, args, why):
    assert problem(op, *args).idle == why


def test_an_operator_can_tell_more():
    spec = dataclasses.replace(fakes.SPECS["add"], idle=lambda asked: "y is zero" * (asked["y"].ndim == 0))
    assert Problem.of(spec, (torch.ones(3), torch.tensor(0.0), 1, None)).idle == "y is zero"
    assert Problem.of(spec, (torch.ones(3), torch.ones(3), 1, None)).idle == ""


def test_no_kernel_is_asked_and_torch_serves():
    asked = []
    kernel = fakes.kernel("add", accepts=lambda p: asked.append(p) or fakes.YES)
    session = fakes.session(fakes.backend("fake", kernel))
    found = session.explain("add", torch.ones(0), torch.ones(1)).decision
    assert found["fake"].refusal.reason == "nothing to compute: x has shape (0,)"
    assert found.chosen == "torch"
    with pytest.raises(UnsupportedProblemError, match=r"nothing to compute: x has shape \(0,\)"):
        session.op("add", backend="fake")(torch.ones(0), torch.ones(1))
    assert session.op("add")(torch.ones(0), torch.ones(1)).shape == (0,)
    assert not asked
    assert session.op("add", backend="fake")(torch.ones(2), torch.ones(1)).tolist() == [2, 2]
    assert asked
