"""torch.jit.trace and torch.fx take an operator as they take torch's own function, or refuse it as that."""

import copy
import functools
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nxcore
from nxcore.interop import internals
from nxcore.spec.problem import tensors_of
from tests.null import fakes
from tests.table import for_each

pytestmark = pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning",
    "ignore:.torch.jit:DeprecationWarning",  # torch's advice to its users
)
GATE = nxcore.pointwise("tanh(x) * y")
NAMES = sorted(fakes.SPECS)
CONVOLUTIONS = ["conv2d", "depthwise_conv2d", "pointwise_conv2d", "sep_conv2d", "sep_conv2d_batch_norm"]


def called(name: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return an operator, its reference, and a call."""
    op = nxcore.op(name)
    sample = next(s for s in op.spec.samples if "smoke" in s.tags)
    return op.run, op.spec.reference, sample.build(op.spec, "cpu", torch.float32)


def floats(args: tuple[Any, ...]) -> list[Tensor]:
    return [t for t in tensors_of(args) if t.is_floating_point()]


def given(args: tuple[Any, ...], tensors: Any) -> tuple[Any, ...]:
    """Return the arguments with these in place of the floating tensors, in order."""
    rest = iter(tensors)

    def swapped(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(swapped, value))
        return next(rest) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(map(swapped, args))


def outcome(call: Any) -> Any:
    """Return what a call returns, or the class and first line of what it raises; the trace is over then."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  what it raises is the outcome
        return type(error), str(error).partition("\n")[0]
    finally:
        assert internals.tracing_state() is None


def traced(run: Any, args: tuple[Any, ...], needing: int | None, *, closed: bool) -> Any:
    """Return what a trace computes of other values; one tensor may need a gradient.

    Torch checks those without: it traces again and compares texts, for longer than all else takes.
    """
    tensors = [t.detach().clone().requires_grad_(i == needing) for i, t in enumerate(floats(args))]
    others = [t.detach() * 1.5 for t in tensors]
    if closed:  # all but the first are constants of the trace
        function = torch.jit.trace(
            lambda x: run(*given(args, (x, *tensors[1:]))), (tensors[0],), check_trace=needing is None
        )
        return function(others[0])
    function = torch.jit.trace(
        lambda *all_of_it: run(*given(args, all_of_it)), tuple(tensors), check_trace=needing is None
    )
    return function(*others)


@for_each("name", NAMES)
def test_a_trace_has_the_outcome_of_torchs_own(name):
    run, reference, args = called(name)
    last = len(floats(args)) - 1
    for closed, needing in itertools.product((False, True), {None, 0, last}):
        calls = (functools.partial(traced, call, args, needing, closed=closed) for call in (reference, run))
        want, got = map(outcome, calls)
        if isinstance(want, tuple) and isinstance(want[0], type):
            assert got == want
        else:
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@for_each("name", CONVOLUTIONS)
@for_each("grad", [True, False])
def test_a_weight_that_is_no_argument_is_refused_as_by_torch(name, grad):
    run, _, args = called(name)
    tensors = [t.detach().clone().requires_grad_() for t in floats(args)]
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(RuntimeError, match="Cannot insert a Tensor that requires"),
    ):
        torch.jit.trace(lambda x: run(*given(args, (x, *tensors[1:]))), (tensors[0].detach(),))
    assert internals.tracing_state() is None
    torch.testing.assert_close(run(*given(args, tensors)), run(*given(args, tensors)))


class Gated(nn.Module):
    """A module whose own code calls operators."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.scale = nn.Parameter(torch.randn(3, 1, 3, 3)), nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return GATE(nxcore.ops.depthwise_conv2d(x, self.filters, 1, 1), self.scale)

    def first(self, x: Tensor) -> Tensor:
        return nxcore.ops.max_pool2d(self(x), 3, 2, 1)


def test_a_modules_trace_has_its_parameters():
    module, x = Gated(), torch.randn(2, 3, 8, 8)
    traces = torch.jit.trace_module(module, {"forward": x, "first": x})
    plain = torch.jit.trace(module, x)
    with torch.no_grad():
        for trace in (plain, traces):
            trace.filters.mul_(2)
    torch.testing.assert_close(traces.first(x), nxcore.ops.max_pool2d(plain(x), 3, 2, 1))
    plain(x).sum().backward()
    assert plain.filters.grad is not None


def test_a_script_calls_a_trace():
    added = torch.jit.trace(lambda x: nxcore.ops.add(x, x), torch.ones(2, 2))

    def doubled(x: Tensor) -> Tensor:
        return added(x) * 2

    x = torch.randn(3)
    torch.testing.assert_close(torch.jit.script(doubled)(x), 4 * x)


@pytest.mark.parametrize(
    "made", [lambda: nn.Conv2d(4, 4, 3, groups=4), lambda: nn.BatchNorm2d(4), lambda: nn.Linear(4, 4)]
)
def test_an_accelerated_module_outside_of_a_trace_is_refused_as_torchs(made):
    plain, x = made(), torch.randn(2, 4, 4, 4)
    found = []
    for model in (plain, copy.deepcopy(plain)):
        if found:
            nxcore.accelerate(nn.Sequential(model))
        found.append(outcome(lambda m=model: torch.jit.trace(lambda x: m(x) * 2, (x,), check_trace=False)))
    assert found[0] == found[1]
    assert found[0][0] is RuntimeError


def test_a_trace_records_no_sizes_of_its_own():
    trace = torch.jit.trace(lambda x: nxcore.ops.add(x, x), torch.ones(2, 3))
    assert "aten::size" not in str(trace.graph)


def test_a_question_about_a_call_leaves_a_trace_as_it_is():
    weight = torch.randn(3, 3, requires_grad=True)

    def asking(x: Tensor) -> Tensor:
        nxcore.op("add").waited((weight, weight, 1, None))
        return x * 2

    assert torch.equal(torch.jit.trace(asking, (torch.ones(3),))(torch.ones(2)), 2 * torch.ones(2))


@for_each("name", NAMES)
def test_a_symbolic_trace_has_one_node_for_a_call(name):
    run, _, args = called(name)
    op, tensors = nxcore.op(name), floats(args)
    named = {p.name: a for p, a in zip(op.spec.params, args, strict=True) if p.keyword and a is not None}
    count = sum(not p.keyword for p in op.spec.params)

    class Net(nn.Module):
        def forward(self, x):
            return op(*given(args, (x, *tensors[1:]))[:count], **named)

    graph = torch.fx.symbolic_trace(Net())
    called_functions = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert called_functions == [op]
    assert not [node for node in graph.graph.nodes if node.op == "call_method"]
    want = run(*args)
    for found in (graph, copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        torch.testing.assert_close(found(tensors[0]), want, equal_nan=True)


def test_a_symbolic_trace_of_an_expression_computes_it():
    graph = torch.fx.symbolic_trace(lambda x, y: GATE(x, y).sum() + nxcore.ops.softmax_sum([x, y], y[0]))
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    torch.testing.assert_close(graph(x, y), (torch.tanh(x) * y).sum() + nxcore.ops.softmax_sum([x, y], y[0]))
