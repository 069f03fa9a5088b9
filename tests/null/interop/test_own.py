"""Torch's own function in place of a reference: the same results, in every form of a call that it takes."""

import ast
import functools
import inspect
import itertools
import textwrap

import pytest
import torch

import nxcore
from nxcore.expression.activations import ACTIVATIONS
from nxcore.interop import native
from nxcore.interop.own import DENSE, TUPLE, own_of
from nxcore.ops import nxcore_ops
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.spec.problem import leaves, tensors_of
from nxcore.spec.window import dense, memory_format
from tests.null import fakes
from tests.table import for_each

EXTENSION = native.found().extension
X, Y = torch.arange(12.0).view(3, 4), torch.ones(4)
TORCHS = Session(registry=discover(found=()))
SPECS = [*nxcore_ops(), *(TORCHS.op(name).spec for name in ACTIVATIONS)]
OWNED = [spec for spec in SPECS if own_of(spec)]


def one_call(spec) -> bool:
    """Whether a reference is the return of one call of a function of torch, with its own arguments."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(spec.reference))).body
    found = [line for line in function.body if not isinstance(getattr(line, "value", None), ast.Constant)]
    call = found[0].value if len(found) == 1 and isinstance(found[0], ast.Return) else None
    if not isinstance(call, ast.Call) or not ast.unparse(call.func).startswith(("torch.", "functional.")):
        return False
    return not any(isinstance(node, ast.Call) for arg in call.args for node in ast.walk(arg))


def test_each_operator_that_is_one_function_of_torchs_has_it():
    found = {spec.name for spec in nxcore_ops() if one_call(spec)}
    assert len(found) > 8
    found -= {"embedding", "scaled_dot_product_attention"}  # their references do more
    assert found <= {spec.name for spec in OWNED}


def forms(spec, bound):
    """Yield positional and named arguments of a call, in each form that torch's function takes."""
    own, params = own_of(spec), spec.params
    least = sum(p.kind in ("tensor", "operand") and a is not None for p, a in zip(params, bound, strict=True))
    for count in range(max(1, least), own.most + 1):
        rest = [(p, a) for p, a in zip(params[count:], bound[count:], strict=True) if p.kind != "out"]
        others = {p.name: a for p, a in rest if a is not p.default and not p.read}
        if {*others} <= {*own.names} and all(a == p.read(bound[0]) for p, a in rest if p.read):
            yield bound[:count], others
            yield bound[:count], {p.name: a for p, a in rest if p.name in own.names}


def formed(own, result, first):
    if own.form == TUPLE:
        return tuple(result)
    return dense(result, memory_format(first)) if own.form == DENSE else result


@for_each("spec", OWNED, ids=lambda spec: spec.name)
def test_it_returns_what_the_reference_does(spec):
    own, taken = own_of(spec), 0
    for sample, dtype in itertools.product(fakes.modest(spec), (torch.float32, torch.bfloat16)):
        bound = sample.build(spec, "cpu", dtype)
        named = dict(zip([p.name for p in spec.params], bound, strict=True))
        singles = all(t.dtype in (torch.float32, torch.bool) for t in tensors_of(bound))
        if named.get("out") is not None or (own.single and not singles):
            continue
        expected = spec.reference(*bound)
        for given, others in forms(spec, bound):
            found = formed(own, own.function(*given, **others), bound[0])
            assert type(found) is type(expected)
            for one, other in zip(leaves(found), leaves(expected), strict=True):
                assert (one.dtype, one.stride()) == (other.dtype, other.stride())
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            taken += 1
    assert taken or own.single


def test_numbers_of_an_expression_have_its_own_defaults():
    leaky = nxcore.pointwise("leaky_relu(x, slope)", slope=0.3)
    assert own_of(leaky.spec).names == ("slope",)
    for x in (X - 6, (X - 6).double()):
        wanted = torch.nn.functional.leaky_relu(x, 0.3)
        assert all(torch.equal(leaky(x), wanted) for _ in range(5))
    assert own_of(TORCHS.op("leaky_relu").spec).function is torch._C._nn.leaky_relu


def test_an_operator_with_another_reference_has_none():
    assert own_of(fakes.replace(fakes.SPECS["add"], reference=lambda *args: torch.add(*args[:2]))) is None


if hasattr(EXTENSION, "own"):

    class Calls(list):
        """Calls of a stand-in for torch's function."""

        def __call__(self, *args, **kwargs):
            self.append((args, kwargs))
            return torch.add(*args, **kwargs)

    @pytest.fixture
    def add():
        """Return an addition that torch serves, and what stands for its function."""
        op, calls = Session(registry=discover(found=())).op("add"), Calls()
        EXTENSION.own(op, calls, 2, ("alpha",), "s", False)
        return op, calls

    COMPILED = pytest.mark.parametrize("path", ["compiled"], indirect=True)

    @COMPILED
    def test_a_call_that_torch_serves_is_its_function_as_it_is_written(path, add):
        op, calls = add
        for _ in range(3):
            assert torch.equal(op(X, Y), X + Y)
            assert torch.equal(op(X, Y, alpha=2), X + 2 * Y)
        assert calls[-2:] == [((X, Y), {}), ((X, Y), {"alpha": 2})]
        before = len(calls)
        assert torch.equal(op(X, y=Y), X + Y)
        assert torch.equal(op(X, Y, out=torch.empty(3, 4)), X + Y)
        assert len(calls) == before  # forms that torch's function has in another way

    @COMPILED
    def test_behind_a_switch_it_is_called_while_torch_serves(path, add):
        op, calls = add
        switch = functools.partial(op.spec.reference)
        op.replan(op.key(X, Y, 1, None), switch)
        op(X, Y)
        assert all(torch.equal(op(X, Y), X + Y) for _ in range(2))
        assert len(calls) == 2
        switch.__setstate__((lambda *args: "a kernel's", (), {}, {}))
        assert op(X, Y) == "a kernel's"

    @COMPILED
    def test_the_reference_serves_and_raises_where_it_fails(path, add):
        op, _ = add
        EXTENSION.own(op, fakes.raising(RuntimeError("no such form")), 2, (), "s", False)
        assert all(torch.equal(op(X, Y), X + Y) for _ in range(6))
        EXTENSION.own(op, fakes.raising(KeyboardInterrupt()), 2, (), "s", False)
        with pytest.raises(KeyboardInterrupt):
            op(X, Y)

    @COMPILED
    @for_each(
        "name, form, args", [("max", "t", (X, 1)), ("conv2d", "d", (X.view(1, 3, 2, 2), X.view(4, 3, 1, 1)))]
    )
    def test_results_have_the_form_of_the_reference(path, name, form, args):
        op = Session(registry=discover(found=())).op(name)
        assert own_of(op.spec).form == form
        image = args[0].to(memory_format=torch.channels_last) if args[0].ndim == 4 else args[0]
        for given in (args, (image, *args[1:])):
            expected = op.spec.reference(*op.spec.bind(*given))
            for found in [op(*given) for _ in range(6)]:
                assert type(found) is type(expected)
                assert [t.stride() for t in leaves(found)] == [t.stride() for t in leaves(expected)]
                torch.testing.assert_close(found, expected, rtol=0, atol=0)

    @COMPILED
    def test_an_expression_is_its_own_in_float32_alone(path):
        op = Session(registry=discover(found=())).op("silu_mul")
        calls = []
        EXTENSION.own(op, lambda *args: calls.append(args) or args[0], 2, (), "s", True)
        for dtype, taken in ((torch.float32, True), (torch.bfloat16, False)):
            x = X.to(dtype)
            results = [op(x, x) for _ in range(6)]
            assert (results[-1] is x) is taken
        assert all(args[0].dtype is torch.float32 for args in calls)
