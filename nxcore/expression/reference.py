"""Expressions in torch: the source of the reference, which defines what is right."""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch import Tensor

from nxcore.expression.statements import Statements
from nxcore.expression.tree import COMPARISONS, INFIX, Expression
from nxcore.spec.reduction import summed_dims
from nxcore.spec.text import execute

UNARY = [
    "abs",
    "exp",
    "expm1",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
    "erf",
    "sigmoid",
    "sign",
    "square",
    "reciprocal",
    "relu",
]

TEMPLATES = {
    **{name: f"torch.{name}({{0}})" for name in UNARY},
    **{name: f"{{0}} {INFIX[name][1]} {{1}}" for name in ("add", "sub", "mul", "div", "and", "or")},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in COMPARISONS.items()},
    "neg": "-{0}",
    "magnitude": "absolute({0})",
    "quotient": "quotient({0}, {1})",
    "not": "~{0}",
    "indicator": "torch.where({0}, 1.0, 0.0)",
    "where": "torch.where({0}, {1}, {2})",
    "minimum": "torch.minimum({0}, {1})",
    "maximum": "torch.maximum({0}, {1})",
    "clamp_min": "torch.clamp({0}, min={1})",
    "clamp_max": "torch.clamp({0}, max={1})",
    "cast": "{0}",
    "leaky_relu": "functional.leaky_relu({0}, {1})",
    "elu": "functional.elu({0}, {1})",
    "gelu": "functional.gelu({0})",
    "gelu_tanh": 'functional.gelu({0}, approximate="tanh")',
    "silu": "functional.silu({0})",
    "mish": "functional.mish({0})",
    "hardswish": "functional.hardswish({0})",
    "hardsigmoid": "functional.hardsigmoid({0})",
    "softplus": "functional.softplus({0}, {1}, {2})",
}
"""Each function in torch."""

HALVES = (torch.float16, torch.bfloat16)


def literal(value: float) -> str:
    """Return a constant in Python."""
    if not math.isfinite(value):
        return f'float("{value}")'
    return f"({value!r})" if value < 0 or math.copysign(1, value) < 0 else repr(value)


def body(expression: Expression, mask: str = "") -> tuple[list[str], tuple[str, ...]]:
    """Return the lines that compute an expression, and the name of each result.

    Parameters
    ----------
    expression : Expression
    mask : str
        The name of a parameter that holds a flag a result: what only others need isn't computed.
    """
    found = Statements.of(expression, TEMPLATES, literal)
    lines: list[str] = []
    for needed, group in itertools.groupby(found.lines, key=lambda line: line.needed):
        indent = "    "
        if mask and len(needed) < len(expression.roots):
            lines.append(f"    if {' or '.join(f'{mask}[{i}]' for i in sorted(needed))}:")
            indent = "        "
        lines.extend(f"{indent}{line.name} = {line.value}" for line in group)
    return lines, found.results


def widened(*tensors: Tensor) -> Sequence[Tensor]:
    """Return tensors in the dtype in which an expression computes: float32 for half types."""
    return [t.float() if t.dtype in HALVES else t for t in tensors]


def stored(result: Tensor, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    """Return a result in its dtype, in ``out`` where the caller gave one."""
    return result.to(dtype) if out is None else out.copy_(result)


def summed(result: Tensor, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a gradient added up over the dimensions along which a tensor was repeated."""
    dims = summed_dims(tuple(result.shape), tuple(size))
    return (torch.sum(result, dims, keepdim=True).view(size) if dims else result).to(dtype)


def quotient(a: float, b: float) -> float:
    """Return a quotient of numbers, infinite or NaN where Python raises."""
    if b:
        return a / b
    return math.copysign(math.inf, a) * math.copysign(1.0, b) if a and not math.isnan(a) else math.nan


def function(name: str, source: str, **scope: Any) -> Callable[..., Any]:
    """Return the function ``name`` of a source that was made of an expression.

    The text holds names of parameters and of functions, checked when the expression was made, and constants.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    module = types.ModuleType(f"nxcore_expression_{digest}", f"The source of {name}.")
    helpers = {"widened": widened, "stored": stored, "summed": summed, "absolute": abs, "quotient": quotient}
    vars(module).update(torch=torch, functional=torch.nn.functional, Tensor=Tensor, **helpers, **scope)
    module.__spec__ = ModuleSpec(module.__name__, None)
    sys.modules[module.__name__] = module  # a compiler looks a function's names up in its module
    execute(source, f"<nxcore expression {name} {digest}>", vars(module))
    made: Callable[..., Any] = getattr(module, name)
    made.__module__ = __name__  # identities find its source there
    made.source = source  # type: ignore[attr-defined]  # the text, to be shown
    return made


def values(expression: Expression) -> Callable[..., tuple[Tensor, ...]]:
    """Return ``values(*tensors, *numbers)``: the results of an expression in torch, as they are computed."""
    lines, results = body(expression)
    given = [*expression.tensors, *(name for name, _ in expression.numbers)]
    like = next(name for name in expression.tensors if name not in expression.masks or len(given) == 1)
    found = [
        f"torch.full_like({like}, {r}, dtype=torch.float64)" if root.kind == "number" else r
        for r, root in zip(results, expression.roots, strict=True)
    ]
    text = [f"def values({', '.join(given)}):", *lines, f"    return ({', '.join(found)},)"]
    return function("values", "\n".join(text) + "\n")
