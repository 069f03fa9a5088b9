"""Norms that models write out: each is one call of torch's function, by its structure alone."""

import copy

import pytest
import torch
from torch import nn

from nxcore.program.passes.norms import norms
from nxcore.program.passes.operators import STAND_INS
from nxcore.program.passes.order import rewritten
from tests.null.program.nets import MET, agree
from tests.null.program.test_passes import traced
from tests.table import for_each


class Norm(nn.Module):
    """Of which Llama's and T5's classes are; its forward is one of the functions below."""

    def __init__(self, forward, size=8):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, size))
        self.eps, self.own = 1e-5, forward

    def forward(self, x):
        return self.own(self, x)


def llama(self, hidden):
    dtype = hidden.dtype
    hidden = hidden.to(torch.float32)
    variance = hidden.pow(2).mean(-1, keepdim=True)
    hidden = hidden * torch.rsqrt(variance + self.eps)
    return self.weight * hidden.to(dtype)


def t5(self, hidden):
    variance = hidden.to(torch.float32).pow(2).mean(-1, keepdim=True)
    hidden = hidden * torch.rsqrt(variance + self.eps)
    if self.weight.dtype in (torch.float16, torch.bfloat16):
        hidden = hidden.to(self.weight.dtype)
    return self.weight * hidden


def plain(self, x):
    return x * torch.rsqrt(torch.mean(x**2, -1, keepdim=True) + self.eps)


def weight_behind(self, x):
    return plain(self, x) * self.weight


NORMS = (llama, t5, plain, weight_behind)


def calls(graph):
    return [node.target for node in graph.graph.nodes if node.op.startswith("call")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@for_each("forward", [llama, t5], ids=lambda f: f.__name__)
def test_a_norm_is_one_call_and_rounds_no_more(forward, dtype):
    torch._dynamo.reset()
    norm, x = Norm(forward).to(dtype), torch.randn(3, 5, 8, dtype=dtype)
    graph = traced(norm, x)
    assert norms(graph.graph) == 1
    graph.recompile()
    assert calls(graph) == [torch.rms_norm]
    exact = Norm(forward).to(dtype).double()(x.double())
    with torch.no_grad():
        (found,), given = graph(norm.weight, x) if _takes_weight(graph) else graph(x, norm.weight), norm(x)
    assert found.dtype is dtype
    assert (found - exact).norm() <= 1.01 * (given - exact).norm() + 1e-6


def _takes_weight(graph):
    first = next(node for node in graph.graph.nodes if node.op == "placeholder")
    return "weight" in first.name


@for_each("forward", [plain, weight_behind], ids=lambda f: f.__name__)
def test_it_needs_no_cast(forward):
    torch._dynamo.reset()
    graph = traced(Norm(forward), torch.randn(3, 8))
    assert rewritten(graph) == {"norms": 1, "operators": 1}
    assert calls(graph) == [STAND_INS[torch.rms_norm]]


def other_axis(self, x):
    return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + self.eps)


def third_power(self, x):
    return x * torch.rsqrt(x.pow(3).abs().mean(-1, keepdim=True) + self.eps)


def of_another(self, x):
    return (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def read_twice(self, x):
    mean = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean + self.eps) + mean


def without_axis(self, x):
    return x * torch.rsqrt(x.pow(2).mean(-1) + self.eps)


@for_each(
    "forward",
    [other_axis, third_power, of_another, read_twice, without_axis],
    ids=lambda f: f.__name__,
)
def test_what_is_no_such_norm_stays(forward):
    torch._dynamo.reset()
    graph = traced(Norm(forward), torch.randn(8, 8))
    assert norms(graph.graph) == 0


def gemma(self, x):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
    return (wide * (1.0 + self.weight.float())).type_as(x)


def test_a_weight_in_float32_keeps_the_norm_there():
    torch._dynamo.reset()
    norm, x = Norm(gemma).bfloat16(), torch.randn(3, 8, dtype=torch.bfloat16)
    graph = traced(norm, x)
    assert norms(graph.graph) == 1
    graph.recompile()
    assert torch.rms_norm in calls(graph)
    assert torch.rsqrt not in calls(graph)
    (found,) = graph(norm.weight, x) if _takes_weight(graph) else graph(x, norm.weight)
    torch.testing.assert_close(found, norm(x))


class Net(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 4, 1), Norm(forward)

    def forward(self, x):
        return self.norm(self.first(x)).sin()


@for_each("forward", NORMS, ids=lambda f: f.__name__)
def test_a_replay_of_it_agrees_in_training(forward, compiled, tape):
    torch._dynamo.reset()
    torch.manual_seed(0)
    ours = Net(forward)
    plain_one = copy.deepcopy(ours)
    agree(compiled(ours), ours, plain_one, MET, shape=(2, 4, 8, 8))
    agree(compiled(ours), ours, plain_one, 2, shape=(2, 4, 8, 8))
    assert tape.replayed
