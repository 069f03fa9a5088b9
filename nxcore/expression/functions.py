"""The functions of expressions: arguments, derivative, and what each is made of.

A derivative is that of torch: at a kink, at equal values, and for NaN. A function with a ``made_of`` is
printed as the functions that it is made of, where a toolkit has no better way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nxcore.expression.tree import COMPARISONS, Node, constant

Parts = tuple[Node | None, ...]


@dataclass(frozen=True)
class Function:
    """One function of expressions.

    Attributes
    ----------
    args : str
        A letter for each argument: ``v`` for numbers of a tensor (or any number), ``n`` for a number that is
        no tensor, ``c`` for truth values.
    derivative : callable, optional
        ``derivative(grad, out, *args)``: the gradient of each argument, None for one without. Without it,
        the function is constant almost everywhere.
    made_of : callable, optional
        ``made_of(*args)``: the same in terms of other functions.
    error : float
        The rounding error of the function itself, in units of the last place of its result.
    defaults : tuple of float
        The values of the last arguments, where they are left out.
    gives : str
        ``value`` or ``condition``.
    """

    args: str
    derivative: Callable[..., Parts] | None = None
    made_of: Callable[..., Node] | None = None
    error: float = 1.0
    defaults: tuple[float, ...] = ()
    gives: str = "value"


def call(name: str, *args: Node | float) -> Node:
    """Return the node of a function.

    >>> call("exp", constant(2)).op
    'exp'
    """
    gives: Any = FUNCTIONS[name].gives
    return Node(name, tuple(map(constant, args)), kind=gives)


def where(condition: Node, a: Node | float, b: Node | float) -> Node:
    """Return the node of a choice."""
    return call("where", condition, a, b)


def _below(a: Node, b: Node | float) -> Node:
    return call("lt", a, b)


def _half_at_ties(grad: Node, a: Node, b: Node) -> Node:
    return where(call("eq", a, b), grad * 0.5, grad)


def _sigmoid(x: Node) -> Node:
    return call("sigmoid", x)


def _softplus(x: Node, beta: Node | float = 1, threshold: Node | float = 20) -> Node:
    scaled = x * beta
    return where(call("gt", scaled, threshold), x, call("log1p", call("exp", scaled)) / beta)


def _gelu(x: Node) -> Node:
    return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1)


def _gelu_derivative(grad: Node, _out: Node, x: Node) -> Parts:
    distribution = (call("erf", x * math.sqrt(0.5)) + 1) * 0.5
    density = call("exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return (grad * (distribution + x * density),)


BETA, KAPPA = math.sqrt(2 / math.pi), 0.044715
"""The constants of the approximation of gelu by tanh."""


def _gelu_tanh(x: Node) -> Node:
    return x * 0.5 * (call("tanh", (x + x * x * x * KAPPA) * BETA) + 1)


def _gelu_tanh_derivative(grad: Node, _out: Node, x: Node) -> Parts:
    t = call("tanh", (x + x * x * x * KAPPA) * BETA)
    slope = (x * x * (3 * KAPPA) + 1) * BETA
    return (grad * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * slope),)


def _silu_derivative(grad: Node, _out: Node, x: Node) -> Parts:
    s = _sigmoid(x)
    return (grad * s * (x * (1 - s) + 1),)


def _mish_derivative(grad: Node, _out: Node, x: Node) -> Parts:
    t = call("tanh", _softplus(x))
    return (grad * (t + x * _sigmoid(x) * (1 - t * t)),)


def _hardswish_derivative(grad: Node, _out: Node, x: Node) -> Parts:
    inside = where(_below(x, 3), grad * (x / 3 + 0.5), grad)
    return (where(call("le", x, -3), 0, inside),)


def _hardsigmoid_derivative(grad: Node, _out: Node, x: Node) -> Parts:
    inside = call("and", call("gt", x, -3), _below(x, 3))
    return (where(inside, grad * (1 / 6), 0),)


def _clamped(x: Node, low: Node | float, high: Node | float) -> Node:
    return call("clamp_max", call("clamp_min", x, low), high)


FUNCTIONS: dict[str, Function] = {
    "add": Function("vv", lambda g, o, a, b: (g, g)),
    "sub": Function("vv", lambda g, o, a, b: (g, -g)),
    "mul": Function("vv", lambda g, o, a, b: (g * b, g * a)),
    "div": Function("vv", lambda g, o, a, b: (g / b, -g * (a / b / b))),
    "neg": Function("v", lambda g, o, a: (-g,), error=0),
    "abs": Function("v", lambda g, o, a: (g * call("sign", a),), error=0),
    "sign": Function("v", error=0),
    **{name: Function("vv", gives="condition") for name in COMPARISONS},
    "and": Function("cc", gives="condition"),
    "or": Function("cc", gives="condition"),
    "not": Function("c", gives="condition"),
    "indicator": Function("c", error=0),
    "where": Function("cvv", lambda g, o, c, a, b: (None, where(c, g, 0), where(c, 0, g)), error=0),
    "minimum": Function(
        "vv",
        lambda g, o, a, b: (
            where(_below(b, a), 0, _half_at_ties(g, a, b)),
            where(_below(a, b), 0, _half_at_ties(g, a, b)),
        ),
        error=0,
    ),
    "maximum": Function(
        "vv",
        lambda g, o, a, b: (
            where(_below(a, b), 0, _half_at_ties(g, a, b)),
            where(_below(b, a), 0, _half_at_ties(g, a, b)),
        ),
        error=0,
    ),
    "clamp_min": Function("vn", lambda g, o, a, n: (where(call("ge", a, n), g, 0), None), error=0),
    "clamp_max": Function("vn", lambda g, o, a, n: (where(call("le", a, n), g, 0), None), error=0),
    "exp": Function("v", lambda g, o, a: (g * o,), error=2),
    "expm1": Function("v", lambda g, o, a: (g * (o + 1),), error=2),
    "log": Function("v", lambda g, o, a: (g / a,), error=2),
    "log1p": Function("v", lambda g, o, a: (g / (a + 1),), error=2),
    "sqrt": Function("v", lambda g, o, a: (g / (o * 2),)),
    "rsqrt": Function("v", lambda g, o, a: (g * -0.5 * (o * o * o),), error=2),
    "sin": Function("v", lambda g, o, a: (g * call("cos", a),), error=2),
    "cos": Function("v", lambda g, o, a: (-g * call("sin", a),), error=2),
    "tanh": Function("v", lambda g, o, a: (g * (1 - o * o),), error=2),
    "erf": Function("v", lambda g, o, a: (g * (call("exp", -(a * a)) * (2 / math.sqrt(math.pi))),), error=2),
    "sigmoid": Function("v", lambda g, o, a: (g * ((1 - o) * o),), error=3),
    "cast": Function("v", lambda g, o, a: (g,), error=0),
    # What follows is made of what precedes.
    "square": Function("v", lambda g, o, a: (g * a * 2,), lambda a: a * a),
    "reciprocal": Function("v", lambda g, o, a: (-g * o * o,), lambda a: constant(1) / a),
    "relu": Function(
        "v", lambda g, o, a: (where(call("le", a, 0), 0, g),), lambda a: call("clamp_min", a, 0)
    ),
    "leaky_relu": Function(
        "vn",
        lambda g, o, a, slope: (where(call("gt", a, 0), g, g * slope), None),
        lambda a, slope: where(call("gt", a, 0), a, a * slope),
        defaults=(0.01,),
    ),
    "elu": Function(
        "vn",
        lambda g, o, a, alpha: (where(call("le", a, 0), g * alpha * call("exp", a), g), None),
        lambda a, alpha: where(call("gt", a, 0), a, alpha * call("expm1", a)),
        defaults=(1.0,),
    ),
    "gelu": Function("v", _gelu_derivative, _gelu),
    "gelu_tanh": Function("v", _gelu_tanh_derivative, _gelu_tanh),
    "silu": Function("v", _silu_derivative, lambda a: a * _sigmoid(a)),
    "mish": Function("v", _mish_derivative, lambda a: a * call("tanh", _softplus(a))),
    "hardswish": Function("v", _hardswish_derivative, lambda a: a * _clamped(a + 3, 0, 6) / 6),
    "hardsigmoid": Function("v", _hardsigmoid_derivative, lambda a: _clamped(a + 3, 0, 6) / 6),
    "softplus": Function(
        "vnn",
        lambda g, o, a, beta, threshold: (
            where(call("gt", a * beta, threshold), g, g * _sigmoid(a * beta)),
            None,
            None,
        ),
        _softplus,
        defaults=(1.0, 20.0),
    ),
}
"""Every function by name."""

BY_RESULT: dict[str, Callable[[Node, Node], Node]] = {
    "exp": lambda g, o: g * o,
    "expm1": lambda g, o: g * (o + 1),
    "sqrt": lambda g, o: g / (o * 2),
    "rsqrt": lambda g, o: g * -0.5 * (o * o * o),
    "tanh": lambda g, o: g * (1 - o * o),
    "sigmoid": lambda g, o: g * ((1 - o) * o),
    "reciprocal": lambda g, o: -g * o * o,
    "relu": lambda g, o: where(call("le", o, 0), 0, g),
}
"""The functions of which torch saves the result -> the gradient, from that of the result and the result."""

WRITTEN = frozenset(FUNCTIONS) - {
    "cast",
    "indicator",
    "clamp_min",
    "clamp_max",
    *COMPARISONS,
    "and",
    "or",
    "not",
}
"""The functions that a user writes by name; the others have signs, or are made by ``clamp``."""
