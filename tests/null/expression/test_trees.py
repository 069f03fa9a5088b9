"""Random expressions: the reference against single numbers, the gradient against torch's autograd."""

import math
import pickle
import random

import pytest
import torch

from nxcore.expression import reference
from nxcore.expression.derived import simple
from nxcore.expression.functions import FUNCTIONS
from nxcore.expression.operator import specs
from nxcore.expression.tree import of_lines
from tests.null.expression.trees import MEANING, meaning, random_expression

TREES = 200
"""The trees of a run of the first part; the rest has another 800."""

SEEDS = [
    pytest.param(range(TREES), id="first"),
    pytest.param(range(TREES, 1000), id="rest", marks=pytest.mark.slow),
]


def close(a, b, tolerance=1e-9):
    return (a != a and b != b) or a == b or abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


def test_every_function_has_a_meaning():
    assert set(MEANING) == set(FUNCTIONS)


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_reference_is_what_python_computes(seeds):
    for seed in seeds:
        expression = random_expression(seed)
        draw = random.Random(seed)
        points = [{name: draw.gauss(0, 1) for name in "xyz"} | {"m": draw.random() < 0.5} for _ in range(3)]
        columns = [torch.tensor([p[name] for p in points], dtype=torch.float64) for name in "xyz"]
        columns.append(torch.tensor([p["m"] for p in points]))
        for form in (expression, simple(expression)):
            found = reference.values(form)(*columns, 0.25)[0]
            for i, point in enumerate(points):
                try:
                    (wanted,) = meaning(expression, slope=0.25, **point)
                except OverflowError:
                    continue
                if isinstance(wanted, float) and math.isfinite(wanted) and abs(wanted) < 1e100:
                    assert close(float(found[i]), wanted, 1e-7), f"seed {seed}: {expression} at {point}"


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_gradient_is_that_of_torch(seeds):
    for seed in seeds:
        expression = random_expression(seed)
        forward, backward = specs(expression, "drawn")
        generator = torch.Generator().manual_seed(seed)
        shapes = ((5, 4), (4,), (5, 1))
        tensors = [
            torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
            for shape in shapes
        ]
        mask = torch.rand(5, 4, generator=generator) < 0.5
        result = forward.reference(*tensors, mask, 0.25)
        grad = torch.randn(result.shape, generator=generator, dtype=torch.float64)
        wanted = torch.autograd.grad(result, tensors, grad, allow_unused=True)
        arguments = backward.expression.args(grad, (True,) * 3, *tensors, mask, 0.25, None)
        found = backward.reference(*arguments)
        # Torch's own derivative of hardsigmoid, also in float64, holds 1/6 in float32.
        rough = 1e-3 * any(node.op == "hardsigmoid" for node in expression.nodes)
        assert found[3] is None
        for name, tensor, a, b in zip("xyz", tensors, found[:3], wanted, strict=True):
            if a is None or b is None:
                assert b is None or not b.any() or b.isnan().any(), f"seed {seed}: {expression}, {name}"
                continue
            assert a.shape == tensor.shape
            # Torch multiplies the 0 of sign's derivative by what may be infinite or NaN.
            a = torch.where(b.isnan(), b, a)
            torch.testing.assert_close(
                a,
                b,
                rtol=rough or 1e-6,
                atol=rough or 1e-9,
                equal_nan=True,
                msg=lambda m: f"seed {seed}: {expression}: {m}",  # noqa: B023
            )


def test_an_expression_is_plain_data():
    for seed in range(50):
        expression = random_expression(seed)
        roots = [len(expression.lines()) - 1]
        again = of_lines(expression.tensors, expression.numbers, expression.lines(), roots)
        assert again.key == expression.key
        assert pickle.loads(pickle.dumps(expression)).key == expression.key
