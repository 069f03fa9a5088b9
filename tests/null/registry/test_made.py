"""Operators made at run time: every backend with a printer has kernels for them."""

import json

import pytest
import torch

from nxcore.errors import InvalidInputError, PluginError, UnknownOperatorError
from nxcore.expression.grammar import parsed
from nxcore.expression.operator import specs
from nxcore.plugin import pointwise_ops
from nxcore.registry import made
from nxcore.registry.discovery import discover
from nxcore.registry.registry import Registry, Source
from nxcore.spec.kernel import YES, Backend, Kernel
from tests.null.fakes import Entry, plugin

HERE = Source("here", "these tests")
PRINTER = Kernel("pointwise", "math:plan", deterministic=True)


@pytest.fixture
def registry():
    found = Registry()
    found.add_backend(Backend("mine", lambda: YES, printers=[PRINTER], api=1), HERE)
    return found


def labels(registry, op):
    return [(backend.label(kernel), kernel.target) for backend, kernel in registry.kernels(op)]


def test_a_printer_has_kernels_for_both_operators(registry):
    assert labels(registry, "doubled") == []
    spec = made.define(registry, parsed("x + x", {}), "doubled")
    assert registry.spec("doubled") is spec
    for op in ("doubled", "doubled_backward"):
        assert labels(registry, op) == [("mine", "math:plan")]
    assert registry.op_sources["doubled"] == made.MADE


def test_operators_that_a_plugin_ships_have_printed_kernels_too():
    registry = Registry()
    registry.add_ops(specs(parsed("x + x", {}), "doubled"), HERE)
    registry.add_backend(Backend("mine", lambda: YES, printers=[PRINTER], api=1), HERE)
    assert labels(registry, "doubled") == [("mine", "math:plan")]


def test_a_plugin_ships_a_text_or_a_function():
    def doubled(x, k=2.0):
        """Return x, k times."""
        return k * x

    hooks = plugin(
        nxcore_ops=lambda: [
            *pointwise_ops("gate", "where(x > 0, x, slope * x) * y", slope=0.1),
            *pointwise_ops("doubled", doubled),
        ],
        nxcore_backend=lambda: Backend("mine", lambda: YES, printers=[PRINTER], api=1),
    )
    found = discover(found=(Entry("mine", hooks),))
    assert found.spec("gate").signature == "(x, y, *, slope=0.1, out=None)"
    assert [name for name, _ in labels(found, "gate_backward")] == ["torch", "inductor", "mine"]
    assert found.spec("doubled").reference.__doc__ == "Return x, k times."
    x = torch.tensor([-1.0, 2.0])
    torch.testing.assert_close(found.spec("gate").reference(x, x, slope=0.5), torch.tensor([0.5, 4.0]))


@pytest.mark.parametrize(
    ("name", "expression", "why"),
    [
        ("a b", "x + x", "name must be an identifier, got 'a b'"),
        ("doubled", 3, "expression must be a function or a text, got int"),
        ("doubled", "x + rellu(x)", "did you mean 'relu'"),
    ],
)
def test_what_a_plugin_ships_is_checked(name, expression, why):
    with pytest.raises(InvalidInputError, match=why):
        pointwise_ops(name, expression)


def test_a_kernel_beside_the_printed_one_needs_a_variant():
    registry = Registry()
    registry.add_ops(specs(parsed("x + x", {}), "doubled"), HERE)
    twice = Backend("mine", lambda: YES, [Kernel("doubled", "math:own")], printers=[PRINTER], api=1)
    with pytest.raises(PluginError, match="two kernels of 'doubled' have the label 'mine'"):
        registry.add_backend(twice, HERE)


def test_one_name_is_one_expression(registry):
    first = made.define(registry, parsed("x + x", {}), "doubled")
    assert made.define(registry, parsed("x + x", {}), "doubled") is first
    with pytest.raises(InvalidInputError, match="another operator is named 'doubled'"):
        made.define(registry, parsed("x * 2", {}), "doubled")


def test_plain_data_defines_it_again(registry):
    spec = made.define(registry, parsed("a * x + 2 * float16(y)", {"a": 2.0}), "axpy")
    data = json.loads(json.dumps(made.plain(spec)))  # a worker reads it so
    other = Registry()
    made.restore(other, data)
    assert other.spec("axpy").expression.key == registry.spec("axpy").expression.key
    assert other.spec("axpy").signature == "(x, y, *, a=2.0, out=None)"
    made.restore(other, data)
    made.restore(other, None)
    assert sorted(other.ops) == ["axpy", "axpy_backward"]


def test_data_of_elsewhere_is_checked(registry):
    spec = made.define(registry, parsed("x + x", {}), "doubled")
    name, expression = made.plain(spec)
    other = Registry()
    with pytest.raises(InvalidInputError, match="name must be an identifier, got 'a b'"):
        made.restore(other, ["a b", expression])
    with pytest.raises(InvalidInputError, match="an operator can't be made of"):
        made.restore(other, "doubled")
    made.define(other, parsed("x * 2", {}), name)
    with pytest.raises(InvalidInputError, match="another operator is named 'doubled'"):
        made.restore(other, [name, expression])


def test_a_line_of_a_recording_defines_its_operator(registry):
    spec = made.define(registry, parsed("x + x", {}), "doubled")
    other = Registry()
    line = {"op": "doubled_backward", "expression": made.plain(spec)}
    assert made.of_line(other, line).name == "doubled_backward"
    assert made.of_line(other, {"op": "doubled"}).expression == spec.expression
    with pytest.raises(UnknownOperatorError):
        made.of_line(Registry(), {"op": "doubled"})


def test_a_backend_without_a_printer_prints_no_source(registry):
    registry.add_backend(Backend("other", lambda: YES, api=1), HERE)
    spec = made.define(registry, parsed("x + x", {}), "doubled")
    with pytest.raises(InvalidInputError, match="'other' prints no expressions; known: inductor, torch"):
        made.source(registry, spec, "other")


def test_what_inductor_compiles_is_torchs_text():
    found = discover(found=())
    spec = made.define(found, parsed("relu(x) + x", {}), "doubled")
    assert made.source(found, spec, "inductor") == made.source(found, spec, "torch")
    assert "torch.relu" in made.source(found, spec, "inductor")


def test_an_activation_is_an_operator_once_it_is_asked_for():
    found = discover(found=())
    assert "silu" not in found.ops
    assert found.spec("silu").signature == "(x, *, out=None)"
    assert {"silu", "silu_backward"} <= set(found.ops)
    assert labels(found, "silu_backward")[0][0] == "torch"
    assert found.op_sources["silu"].plugin == "core"
    assert found.spec("mish_backward").name == "mish_backward"
    with pytest.raises(UnknownOperatorError, match="did you mean 'softplus'"):
        found.spec("softpluss")


def test_a_backend_may_have_its_own_kernel_of_an_activation(registry):
    made.add_activations(registry, HERE)
    own = Backend(
        "own", lambda: YES, [Kernel("silu", "math:plan", variant="tuned")], printers=[PRINTER], api=1
    )
    registry.add_backend(own, HERE)
    assert [label for label, _ in labels(registry, "silu")] == ["mine", "own-tuned", "own"]
    unknown = Backend("unknown", lambda: YES, [Kernel("sillu", "math:plan")], api=1)
    with pytest.raises(PluginError, match="did you mean 'silu'"):
        registry.add_backend(unknown, HERE)


def test_an_activations_name_is_taken():
    found = discover(found=())
    assert made.define(found, parsed("silu(x)", {}), "silu") is found.spec("silu")
    with pytest.raises(InvalidInputError, match="another operator is named 'mish'"):
        made.define(found, parsed("silu(x)", {}), "mish")
    made.define(found, parsed("x + 1", {}), "plus_backward")
    with pytest.raises(InvalidInputError, match="another operator is named 'plus_backward'"):
        made.define(found, parsed("x * 2", {}), "plus")
    assert "plus" not in found.ops
