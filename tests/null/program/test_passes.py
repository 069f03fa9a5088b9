"""Passes over a graph of torch's functions: kernels are launched where they are chosen."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from nxcore.expression.activations import ACTIVATIONS
from nxcore.expression.normed import NORMED, normed
from nxcore.program.passes.blocks import blocks
from nxcore.program.passes.operators import operators
from nxcore.program.passes.order import rewritten
from tests.nn.embedding import indexed
from tests.null import fakes
from tests.null.program.nets import MET, agree
from tests.stand_ins import stand_in
from tests.table import for_each

operators_has = stand_in(sys.modules[operators.__module__])
blocks_has = stand_in(sys.modules[blocks.__module__])


@pytest.fixture
def ran(as_default, operators_has, blocks_has):
    """Serve operators by torch's references in disguise; return the names of those that ran."""
    names = []

    def noting(name):
        def run(*args):
            names.append(name)
            return known[name].reference(*args)

        return fakes.kernel(name, run)

    made = [s for name in ACTIVATIONS if not name.endswith("_mul") for s in ACTIVATIONS[name].specs(name)]
    made += [spec for name in NORMED for spec in normed(name)]
    known = fakes.SPECS | {spec.name: spec for spec in made}
    session = fakes.session(fakes.backend("fake", *map(noting, known)), specs=list(known.values()))
    as_default(session)
    operators_has(FEWEST=1)
    blocks_has(FEWEST=1)
    session.chooser.recorded.won = lambda _: True
    with session.use("fake"):
        yield names


class Layers(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), *layers)

    def forward(self, x):
        return self.layers(x).sin() / 10  # whose squares' gradients no norm takes away


def conv(**how):
    return nn.Conv2d(4, 4, 3, groups=4, **how)


def separable():
    return nn.ReLU(), conv(bias=False, padding=1), nn.Conv2d(4, 5, 1, bias=False), nn.BatchNorm2d(5)


MODELS = {
    "a norm": ([nn.BatchNorm2d(4)], ["batch_norm"]),
    "a norm without weights": ([nn.BatchNorm2d(4, affine=False)], ["batch_norm"]),
    "a norm without statistics": ([nn.BatchNorm2d(4, track_running_stats=False)], ["batch_norm"]),
    "a depthwise convolution": ([conv(padding="same")], ["depthwise_conv2d", "add"]),
    "its padding": ([conv(padding=1, padding_mode="reflect", bias=False)], ["depthwise_conv2d"]),
    "a max pool": ([nn.MaxPool2d(3, 2, 1)], ["max_pool2d_with_offsets"]),
    "a mean pool": ([nn.AvgPool2d(3, 2, 1, count_include_pad=False)], ["avg_pool2d"]),
    "global pools": ([nn.AdaptiveAvgPool2d(1)], ["global_avg_pool2d"]),
    "a global max pool": ([nn.AdaptiveMaxPool2d((1, 1))], ["global_max_pool2d_with_offsets"]),
    "activations": (
        [nn.ELU(0.5), nn.GELU(), nn.GELU("tanh"), nn.Hardswish(), nn.LeakyReLU(0.3), nn.Softplus(2.0, 10.0)],
        ["elu", "gelu", "gelu_tanh", "hardswish", "leaky_relu", "softplus"],
    ),
    "other activations": (
        [nn.SiLU(), nn.Mish(), nn.Sigmoid(), nn.Tanh(), nn.Hardsigmoid(), nn.ReLU()],
        ["silu", "mish", "sigmoid", "tanh", "hardsigmoid", "relu"],
    ),
    "softmaxes": ([nn.Softmax(1), nn.LogSoftmax(-1)], ["softmax", "log_softmax"]),
    "norms": (
        [nn.LayerNorm(8), nn.RMSNorm((8, 8)), nn.GroupNorm(2, 4)],
        ["layer_norm", "rms_norm", "group_norm"],
    ),
    "rows of an index": ([indexed(nn.Embedding(5, 8))], ["embedding"]),
    "a block": (separable(), ["sep_conv2d_batch_norm"]),
    "what torch alone does": ([nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)], []),
}


@for_each("name", MODELS)
def test_a_kernel_of_what_a_graph_computes_is_in_its_replay(name, ran, compiled, tape):
    layers, wanted = MODELS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    ours = Layers(*copy.deepcopy(nn.ModuleList(layers)))
    plain = copy.deepcopy(ours)
    agree(compiled(ours), ours, plain, MET, shape=(2, 4, 8, 8))
    ran.clear()
    agree(compiled(ours), ours, plain, 2, shape=(2, 4, 8, 8))
    assert tape.replayed
    assert [each for each in dict.fromkeys(ran) if not each.endswith("_backward")] == wanted


NAMES = {
    **{name: (make, name) for name, make in {"silu": nn.SiLU, "relu": nn.ReLU, "elu": nn.ELU}.items()},
    "in place": (lambda: nn.ReLU(inplace=True), "relu"),
    "tanh": (lambda: nn.GELU("tanh"), "gelu_tanh"),
    "with a number": (lambda: nn.LeakyReLU(0.3), "leaky_relu"),
}


@for_each("case", NAMES)
def test_a_norm_in_evaluation_and_its_activation_are_one_kernel(case, ran, compiled):
    make, name = NAMES[case]
    torch._dynamo.reset()
    ran.clear()
    ours = Layers(nn.BatchNorm2d(4), make()).eval()
    plain, call, x = copy.deepcopy(ours), compiled(ours), torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(call(x), plain(x))
    assert {*ran} == {f"normed_{name}"}
    ran.clear()
    torch.testing.assert_close(call(x), plain(x))
    assert not ran, "gradients are torch's"


class Joined(nn.Module):
    """A norm, what is added to it, and what follows."""

    def __init__(self, add, after=None):
        super().__init__()
        self.norm, self.add, self.after = nn.BatchNorm2d(4), add, after or nn.Identity()

    def forward(self, x):
        return self.after(self.add(self.norm(x.sin()), x))


def added(norm, x):
    norm += x
    return norm


JOINED = {
    "a sum": (lambda: Joined(lambda norm, x: norm + x), ["normed_sum"]),
    "a sum in place": (lambda: Joined(added), ["normed_sum"]),
    "a sum and a relu": (lambda: Joined(torch.add, nn.ReLU(inplace=True)), ["normed_relu_sum"]),
    "a sum and another": (lambda: Joined(added, nn.SiLU()), ["normed_sum", "silu"]),
    "the other way round": (lambda: Joined(lambda norm, x: x + norm), []),
    "a broadcast": (lambda: Joined(lambda norm, x: norm + x[:1]), []),
    "a number": (lambda: Joined(lambda norm, x: norm + 2), []),
    "a multiple": (lambda: Joined(lambda norm, x: torch.add(norm, x, alpha=2)), []),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@for_each("case", JOINED)
def test_a_norm_in_evaluation_and_its_sum_are_one_kernel(case, dtype, ran, compiled):
    make, names = JOINED[case]
    torch._dynamo.reset()
    ran.clear()
    ours, x = make().eval(), torch.randn(2, 4, 8, 8, dtype=dtype)
    ours.norm.running_mean.uniform_()
    with torch.no_grad():
        wanted = copy.deepcopy(ours)(x)
        torch.testing.assert_close(compiled(ours)(x), wanted)
    assert [*dict.fromkeys(ran)] == names


def test_a_block_in_evaluation_is_a_separable_convolution(ran, compiled):
    ours = Layers(*separable()).eval()
    x = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(ours)(x), copy.deepcopy(ours)(x))
    assert {*ran} == {"sep_conv2d"}


def traced(function, *inputs):
    """Return the graph of a function, as dynamo gives it to a backend."""
    graphs = []
    torch.compile(function, backend=lambda graph, _: graphs.append(graph) or graph.forward)(*inputs)
    return graphs[0]


def looped(x):
    return sum(row * i for i, row in enumerate(x))


def indexed(x):
    return x[0] + x[2]


def written(x):
    x = x + 1
    for row in (x[0], x[1], x[2]):
        row.mul_(2)
    return x


@pytest.mark.parametrize(("function", "count"), [(looped, 1), (indexed, 0), (written, 0)])
def test_a_tensor_that_python_loops_over_is_divided_once(function, count):
    x = torch.randn(3, 4)
    graph = traced(function, x)
    assert rewritten(graph).get("rows", 0) == count
    torch.testing.assert_close(graph(x)[0], function(x))


def twice(x):
    mean, var, ones = torch.zeros(4), torch.ones(4), torch.ones(4)
    y = functional.batch_norm(x, mean, var, ones, ones)
    return functional.relu(y) + y


def test_what_is_read_elsewhere_too_stays():
    graph = traced(twice, torch.randn(2, 4, 3, 3))
    assert blocks(graph.graph) == 0
    assert operators(graph.graph) == 1


def test_hooks_on_saved_tensors_leave_it_to_torch(ran, compiled):
    ours = Layers(nn.BatchNorm2d(4))
    call = compiled(ours)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        call(torch.randn(2, 4, 3, 3))
    assert not ran
