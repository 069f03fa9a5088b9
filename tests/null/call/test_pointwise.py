"""Operators that are made at run time: the same as any other in every respect."""

import ast
import builtins
import os
import pickle
import random

import pytest
import torch

import nxcore
from nxcore.call.generated import source
from nxcore.errors import InvalidInputError
from nxcore.expression.build import RESERVED
from nxcore.expression.grammar import parsed
from nxcore.registry import made
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.kernel import Code
from tests import fresh


@pytest.fixture
def gated():
    @nxcore.pointwise  # another slope than in an example, which makes an operator of the same name
    def gated(x, y, slope=0.2):
        """Return a gate."""
        return torch.where(x > 0, x, slope * x) * y

    return gated


def test_it_is_an_operator_of_the_registry(gated):
    assert nxcore.op(gated.__name__) is gated
    assert gated.__name__.startswith("gated_")
    assert gated.__doc__ == "Return a gate."
    assert gated.spec.gradient.op == f"{gated.__name__}_backward"


def test_the_same_expression_is_the_same_operator(gated):
    again = nxcore.pointwise("where(x > 0, x, slope * x) * y", slope=0.2, name=gated.__name__)
    assert again is gated
    assert nxcore.pointwise("y * where(x > 0, x, slope * x)", slope=0.2) is not gated


def test_it_broadcasts_and_writes_into_out(gated):
    x, y, out = torch.randn(3, 4), torch.randn(4), torch.empty(3, 4)
    wanted = torch.where(x > 0, x, 0.5 * x) * y
    assert torch.equal(gated(x, y, slope=0.5), wanted)
    assert gated(x, y, slope=0.5, out=out) is out
    assert torch.equal(out, wanted)


def test_it_is_differentiated(gated):
    tensors = [t.requires_grad_() for t in (torch.randn(3, 4), torch.randn(4))]
    grad = torch.randn(3, 4)
    found = torch.autograd.grad(gated(*tensors), tensors, grad)
    x, y = tensors
    wanted = torch.autograd.grad(torch.where(x > 0, x, 0.2 * x) * y, tensors, grad)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_its_second_derivative_is_torchs():
    cubed = nxcore.pointwise("x * x * x")
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(cubed, (x,))
    assert torch.autograd.gradgradcheck(cubed, (x,))


def test_half_types_are_rounded_once():
    sums = nxcore.pointwise("(x + y) - x")
    x, y = torch.full((4,), 2048.0).half(), torch.ones(4).half()
    assert torch.equal(sums(x, y), y)
    assert not torch.equal((x + y) - x, y)


def test_it_is_explained(gated):
    found = nxcore.explain(gated, torch.ones(3), torch.ones(3))
    assert found.problem.op == gated.__name__
    assert nxcore.explain(gated.__name__, torch.ones(3), torch.ones(3)).problem == found.problem


def test_it_is_compiled(gated):
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4)
    compiled = torch.compile(lambda x, y: gated(x, y) + 1, backend="aot_eager", fullgraph=True)
    result = compiled(x, y)
    assert torch.equal(result, gated(x, y) + 1)
    result.sum().backward()
    assert x.grad is not None


def test_half_types_are_compiled(gated):
    x, y = torch.randn(3, 4).half(), torch.randn(4).bfloat16()
    compiled = torch.compile(lambda x, y: gated(x, y), backend="aot_eager", fullgraph=True)
    assert compiled(x, y).dtype is torch.float32


def test_references_are_compiled():
    smooth = nxcore.pointwise("gelu(x) * y + softplus(x)")  # which torch has in torch.nn.functional
    x, y = torch.randn(3, 4).half(), torch.randn(4).bfloat16()
    compiled = torch.compile(smooth.spec.reference, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, y), smooth(x, y))


def test_it_runs_under_autocast(gated):
    x, y = torch.randn(3, 4), torch.randn(4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert gated(x, y).dtype is torch.float32


def test_it_is_pickled_with_its_expression(gated, monkeypatch):
    data = pickle.dumps(gated)
    assert pickle.loads(data) is gated
    registry = discover(found=())
    name, expression = made.plain(gated.spec)
    made.restore(registry, [name, expression])
    assert registry.spec(name).expression.key == gated.spec.expression.key
    backward = registry.spec(f"{name}_backward")
    assert made.plain(backward) == [name, expression]


@pytest.mark.slow
def test_another_process_unpickles_it(gated, tmp_path):
    path = tmp_path / "operator"
    path.write_bytes(pickle.dumps(gated))
    text = f"""
import pickle, pathlib, torch
gated = pickle.loads(pathlib.Path({str(path)!r}).read_bytes())
print(gated.__name__, gated(torch.tensor([-2.0]), torch.ones(1), slope=0.5).item())
"""
    env = os.environ | {"NXCORE_BACKENDS": "numba", "NXCORE_POLICY": "frozen"}
    ran = fresh.run("-c", text, env=env)
    assert ran.stdout.split() == [gated.__name__, "-1.0"], ran.stderr


def test_nothing_is_compiled_where_that_is_forbidden():
    session = Session(Settings(backends=frozenset({"numba"}), policy="measure", jit=False))
    factor = random.SystemRandom().random()  # so that nothing of it is on disk
    name = made.define(session.registry, parsed(f"relu(x) * {factor}", {}), "drawn").name
    x = torch.randn(1000)
    found = session.explain(name, x)
    assert found.decision.chosen == "torch"
    assert found.decision["numba"].refusal.code == Code.UNCOMPILED
    assert torch.equal(session.op(name)(x), torch.relu(x) * factor)


def test_a_name_is_taken_once(gated):
    with pytest.raises(InvalidInputError, match="another operator is named 'add'"):
        nxcore.pointwise("x + 1", name="add")
    with pytest.raises(InvalidInputError, match="name must be an identifier, got 'a b'"):
        nxcore.pointwise("x + 1", name="a b")


@pytest.mark.parametrize(
    ("given", "how", "why"),
    [
        (3, {}, "expression must be a function or a text, got int"),
        ("x * a", {"a": "1"}, "the default of a must be a number, got str"),
        (abs, {"a": 1.0}, "a function's numbers are its parameters with defaults, got a"),
    ],
)
def test_what_is_no_expression(given, how, why):
    with pytest.raises(InvalidInputError, match=why):
        nxcore.pointwise(given, **how)


def test_its_source_is_shown(gated):
    assert "torch.where" in gated.source()
    with pytest.raises(nxcore.errors.UnknownBackendError):
        gated.source("tritno")
    with pytest.raises(InvalidInputError, match="add was not made of an expression"):
        nxcore.ops.add.source()


def test_no_parameter_hides_a_name_of_generated_code():
    text = source(nxcore.pointwise("x * slope + y", slope=0.5).spec)
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    own = {name for name in names if name.startswith(("guard_", "static_", "default_", "draw_", "_"))}
    assert names - own - {"x", "y", "slope", "out"} - set(vars(builtins)) <= RESERVED


def test_a_call_is_checked():
    add = nxcore.pointwise("x + y")
    with pytest.raises(InvalidInputError, match="y must be a tensor, got float"):
        add(torch.ones(2), 1.0)
    with pytest.raises(InvalidInputError, match=r"y must broadcast .* \(2,\), got shape \(3,\)"):
        add(torch.ones(2), torch.ones(3))
    with pytest.raises(InvalidInputError, match="m must have dtype bool, since it is a condition"):
        nxcore.pointwise("where(m, x, 0.0)")(torch.ones(2), torch.ones(2))
