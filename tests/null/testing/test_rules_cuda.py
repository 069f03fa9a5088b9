"""The kit's rules of a CUDA device, each with a kernel that it is there for."""

from dataclasses import replace

import pytest
import torch

from nxcore.testing import Inapplicable, cuda
from tests.null.fakes import SPECS
from tests.null.testing.test_testing import alone, hostile


def on_a_side_stream(x, dim, keepdim):
    with torch.cuda.stream(torch.cuda.Stream()):
        return SPECS["sum"].reference(x, dim, keepdim)


def keeps_the_first_answer():
    kept = []

    def call(x, dim, keepdim):
        kept.append(SPECS["sum"].reference(x, dim, keepdim) if not kept else kept[0])
        return kept[0].clone()

    return call


def on_the_current_device(x, dim, keepdim):
    result = SPECS["sum"].reference(x, dim, keepdim)
    return result.to(torch.device("cuda", torch.cuda.current_device()))


def in_thirty_two_bits(x, dim, keepdim):
    wraps = any(n * s > 2**31 for n, s in zip(x.shape, x.stride(), strict=True))
    return SPECS["sum"].reference(x.zero_() if wraps else x, dim, keepdim)


BREAKS_ON_CUDA = {
    "runs_on_the_current_stream": lambda: hostile("sum", on_a_side_stream),
    "replays_in_a_graph": lambda: hostile("sum", keeps_the_first_answer(), graph_safe=True),
    "runs_on_another_device": lambda: hostile("sum", on_the_current_device),
    "reads_far_offsets": lambda: hostile("sum", in_thirty_two_bits),
}


def test_no_rule_of_a_device_is_without_a_kernel_that_breaks_it():
    assert {rule.__name__ for rule in cuda.ON_CUDA} == set(BREAKS_ON_CUDA)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", BREAKS_ON_CUDA)
def test_each_rule_of_a_device_refuses_what_it_is_there_for(rule):
    if rule == "runs_on_another_device" and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    assert rule in BREAKS_ON_CUDA[rule]().rules


def test_rules_of_a_device_ask_nothing_of_the_cpu():
    for rule in cuda.ON_CUDA:
        with pytest.raises(Inapplicable, match="the kernel runs on cpu"):
            rule(replace(alone(), fixed=torch.device("cpu")))
