"""Functions: what a trace records, and why another function is no expression."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everyone writes it

from nxcore.errors import ExpressionError
from nxcore.expression.grammar import parsed
from nxcore.expression.symbol import traced
from tests.table import for_each

weight = torch.ones(3)


def fault(function):
    with pytest.raises(ExpressionError) as caught:
        traced(function)
    return str(caught.value)


@for_each(
    ("function", "text"),
    [
        (lambda x, y: torch.relu(x) * y, "relu(x) * y"),
        (lambda x, y: x.sigmoid() - y, "sigmoid(x) - y"),
        (lambda x, y: relu(x) * y, "relu(x) * y"),  # noqa: F821  a function of expressions
        (lambda x, y: torch.where(x > 0, y, 2 * y), "where(x > 0, y, 2 * y)"),
        (lambda x: F.gelu(x, approximate="tanh"), "gelu_tanh(x)"),
        (lambda x: F.leaky_relu(x, negative_slope=0.2), "leaky_relu(x, 0.2)"),
        (lambda x: torch.clamp(x, min=0.5), "maximum(x, 0.5)"),
        (lambda x: x.clamp(0, 6) / 6, "clamp(x, 0, 6) / 6"),
        (lambda x: 1 - abs(x), "1 - abs(x)"),
        (lambda x: 1 / (1 + torch.exp(-x)), "1 / (1 + exp(-x))"),
        (lambda x: x**3, "x ** 3"),
        (lambda x, y: torch.add(x, y, alpha=2), "x + y * 2"),
        (lambda x: x.to(torch.float16) + 1, "float16(x) + 1"),
        (lambda x, y: torch.where((x > 0) | ~(y > x), x, y), "where((x > 0) | ~(y > x), x, y)"),
        (lambda x: torch.maximum(x, -x), "maximum(x, -x)"),
        (lambda x: np.exp(x), "exp(x)"),
        (lambda x: np.float32(2) * x + x * np.float64(3), "2.0 * x + x * 3.0"),
    ],
)
def test_a_function_is_the_tree_of_its_text(function, text):
    assert traced(function).key == parsed(text, {}).key


def test_numbers_have_defaults():
    def leaky(x, slope=0.25):
        return torch.where(x > 0, x, slope * x)

    assert traced(leaky).key == parsed("where(x > 0, x, slope * x)", {"slope": 0.25}).key


@for_each(
    ("function", "why"),
    [
        (lambda x: x if x > 0 else 0 * x, "use where(x > 0, a, b) for `if x > 0`"),
        (lambda x, y: max(x, y), "minimum or maximum for min or max"),
        (lambda x: x * weight, "the tensor 'weight' comes from outside of the function: make it a parameter"),
        (lambda x: weight * x, "the tensor 'weight' comes from outside"),
        (lambda x: torch.relu(torch.ones(2)), "a tensor of shape (2,) comes from outside"),
        (lambda x: torch.sum(x), "torch's sum is no pointwise function"),
        (lambda x: x.softmax(-1), "the attribute 'softmax' of a tensor can't be in an expression"),
        (lambda x: x.shape[0] * x, "which knows no shapes"),
        (lambda x: x[0], "an index can't be in an expression"),
        (lambda x: x * len(x), "an expression knows no shapes"),
        (lambda x: sum(x), "a tensor can't be taken apart"),
        (lambda x: x * math.exp(x), "use torch's functions, not those of math"),
        (lambda x, y: x @ y, "a product of matrices"),
        (lambda x: x // 2, "use /"),
        (lambda x: rellu(x), "no function is named 'rellu'; did you mean 'relu'?"),  # noqa: F821  misspelt
        (lambda x, *y: x, "a function of *args has no fixed tensors"),
        (lambda x, key: x + key, "'key' can't be the name of a parameter"),
        (lambda x: 3, "must return one value of its tensors, got int"),
        (lambda x: (x + 1, x), "must return one value of its tensors, got tuple"),
        (lambda x: x, "must compute something, got only x"),
        (lambda x, y: x + 1, "the parameter 'y' is not used"),
        (lambda x, name="a": x + 1, "the default of 'name' must be a number, got str"),
        (lambda x, a=1.0, *, y: x + y * a, "the tensor 'y' must precede the numbers"),
        (lambda x: 2**x, "use exp(y * log(x)) for x ** y"),
        (lambda x: 7 % x, "% can't be in an expression"),
        (lambda x, y: torch.where((x > 0) ^ (y > 0), x, y), "^ can't be in an expression"),
        (lambda x: x.sum(), "call it on the result"),
        (lambda x: np.add.reduce(x), "numpy's add.reduce can't be in an expression"),
        (lambda x: np.exp(x, where=False), "takes no argument 'where'"),
        (torch.relu, "relu has no signature: give a function of tensors"),
    ],
)
def test_a_fault_has_a_reason(function, why):
    assert why in fault(function)


def test_a_tensor_of_an_enclosing_function_is_named():
    inner = torch.ones(2)
    assert "the tensor 'inner' comes from outside" in fault(lambda x: x + inner)
