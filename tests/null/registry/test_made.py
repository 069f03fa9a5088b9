"""Operators made at run time: every backend with a printer has kernels for them."""

import json

import pytest

from nxcore.errors import InvalidInputError, PluginError, UnknownOperatorError
from nxcore.expression.grammar import parsed
from nxcore.expression.operator import specs
from nxcore.registry import made
from nxcore.registry.registry import Registry, Source
from nxcore.spec.kernel import YES, Backend, Kernel

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
    with pytest.raises(InvalidInputError, match="'other' prints no expressions"):
        made.source(registry, spec, "other")
