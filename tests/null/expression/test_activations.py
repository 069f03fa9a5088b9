"""Activations and gates: what torch has under the same names, with the same arguments and gradients."""

import inspect

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional

import nxcore
from nxcore.errors import InvalidInputError
from nxcore.expression.activations import ACTIVATIONS
from nxcore.interop import autocast
from tests.table import for_each

TORCHS = {
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu_mul": lambda x, y: functional.silu(x) * y,
    "gelu_mul": lambda x, y: functional.gelu(x) * y,
}
NUMBERS = {"leaky_relu": (0.3,), "elu": (1.7,), "softplus": (2.0, 1.5)}


def torchs(name):
    return TORCHS.get(name) or getattr(functional, name)


def tensors(name, dtype):
    generator = torch.Generator().manual_seed(3)
    count = len(ACTIVATIONS[name].expression.tensors)
    edges = torch.tensor([-3.0, -0.0, 0.0, 3.0, 30.0, -30.0], dtype=dtype)
    drawn = [2 * torch.randn(60, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]
    return [torch.cat([edges, t]).requires_grad_() for t in drawn]


@for_each("name", ACTIVATIONS)
@for_each("numbers", [False, True], ids=["defaults", "numbers"])
def test_it_is_what_torch_computes(name, numbers):
    given = NUMBERS.get(name, ()) if numbers else ()
    operator = nxcore.op(name, backend="torch")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        args = tensors(name, dtype)
        found, wanted = operator(*args, *given), torchs(name)(*args, *given)
        torch.testing.assert_close(found, wanted)
        grad = torch.randn_like(wanted)
        # Torch rounds a gate twice in half types, and its gradients of hard functions hold 1/6 in float32.
        rough = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
        gradients = torch.autograd.grad(found, args, grad), torch.autograd.grad(wanted, args, grad)
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, **rough)


@pytest.mark.parametrize("name", ["leaky_relu", "elu"])  # softplus has no signature
def test_its_numbers_are_torchs(name):
    parameters = inspect.signature(torchs(name)).parameters.values()
    assert ACTIVATIONS[name].numbers == {p.name: p.default for p in parameters if type(p.default) is float}


@pytest.mark.parametrize("backend", [None, "torch"])
def test_gelu_takes_torchs_approximate(backend):
    gelu, x = nxcore.op("gelu", backend=backend), torch.linspace(-3, 3, 13, requires_grad=True)
    for approximate in ("none", "tanh"):
        wanted = functional.gelu(x, approximate=approximate)
        torch.testing.assert_close(gelu(x, approximate=approximate), wanted)
        (grad,) = torch.autograd.grad(gelu(x, approximate=approximate).sum(), x)
        torch.testing.assert_close(grad, torch.autograd.grad(wanted.sum(), x)[0])
    out = torch.empty(13)
    with torch.no_grad():
        assert gelu(x, out=out, approximate="tanh") is out
        assert not torch.equal(out, gelu(x))
    with pytest.raises(InvalidInputError, match="approximate must be 'none' or 'tanh', got 'erf'"):
        gelu(x, approximate="erf")
    with pytest.raises(InvalidInputError, match="got None"):
        gelu(x, approximate=None)


def test_another_approximation_is_a_call_of_another_operator():
    x = torch.ones(4)
    assert nxcore.explain("gelu", x, approximate="tanh").problem.op == "gelu_tanh"
    assert nxcore.explain("gelu", x, approximate="none").problem.op == "gelu"
    assert str(inspect.signature(nxcore.ops.gelu)) == nxcore.ops.gelu.spec.signature
    assert nxcore.ops.gelu.spec.signature == "(x, *, out=None, approximate='none')"
    compiled = torch.compile(
        lambda x: nxcore.ops.gelu(x, approximate="tanh"), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(x), functional.gelu(x, approximate="tanh"))


def test_it_says_what_it_is():
    assert "``torch.nn.functional.leaky_relu``" in nxcore.ops.leaky_relu.__doc__
    assert nxcore.ops.leaky_relu.spec.signature == "(x, negative_slope=0.01, *, out=None)"


@pytest.fixture
def casting():
    """Autocast on a device that isn't here: its tensors have no memory."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    with FakeTensorMode():
        yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


@for_each("name", ACTIVATIONS)
def test_autocast_does_to_it_what_it_does_to_torchs(name, casting):
    spec = nxcore.op(name).spec
    for dtype in (torch.float32, torch.float16):
        x = [torch.empty(8, dtype=dtype, device="cuda") for _ in ACTIVATIONS[name].expression.tensors]
        wanted = torchs(name)(*x).dtype
        assert spec.reference(*x, *(p.default for p in spec.params[len(x) :])).dtype is wanted
        given = autocast.cast(spec, (*x, None))
        assert (
            wanted is torch.float32 if given is None else all(a is b for a, b in zip(given, x, strict=False))
        )
