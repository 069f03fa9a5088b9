"""Activations and gates: what torch has under the same names, with the same arguments and gradients."""

import inspect

import pytest
import torch
from torch.nn import functional

import nxcore
from nxcore.expression.activations import ACTIVATIONS

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


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("numbers", [False, True], ids=["defaults", "numbers"])
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


def test_it_says_what_it_is():
    assert "``torch.nn.functional.leaky_relu``" in nxcore.ops.leaky_relu.__doc__
    assert nxcore.ops.leaky_relu.spec.signature == "(x, negative_slope=0.01, *, out=None)"
