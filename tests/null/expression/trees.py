"""Random expressions, and what they are by definition: Python's own functions on single numbers."""

import math
import random

from nxcore.expression.build import NAMES, applied, finished, number, operated
from nxcore.expression.functions import FUNCTIONS
from nxcore.expression.tree import COMPARISONS, Node

SIGNS = ("add", "sub", "mul", "div")
UNARY = sorted(
    n for n in NAMES if n in FUNCTIONS and len(FUNCTIONS[n].args) - len(FUNCTIONS[n].defaults) == 1
)
UNBOUNDED = frozenset({"exp", "expm1", "reciprocal", "rsqrt", "square"})
"""Functions of which one within another soon leaves float32."""


def random_expression(seed, tensors=3, depth=4):
    """Return an expression of tensors, a condition ``m`` and a number; the same for the same seed."""
    draw = random.Random(seed)
    names = tuple("xyz"[:tensors])
    slope = Node("number", (), "slope", "number")
    mask = Node("mask", (), "m", "condition")

    def leaf():
        if draw.random() < 0.8:
            return Node("input", (), draw.choice(names))
        return slope if draw.random() < 0.3 else number(round(draw.uniform(-2, 2), 2))

    def condition(below):
        if draw.random() < 0.2:
            return mask
        found = operated(draw.choice(list(COMPARISONS)), tensor(below), value(below))
        if draw.random() < 0.2:
            found = operated(draw.choice(("and", "or")), found, condition(below - 1)) if below > 0 else found
        return operated("not", found) if draw.random() < 0.1 else found

    def tensor(below):
        found = value(below)
        return found if found.kind == "value" else operated("add", Node("input", (), names[0]), found)

    def value(below):
        if below <= 0 or draw.random() < 0.1:
            return leaf()
        kind = draw.random()
        if kind < 0.45:
            sign, left, right = draw.choice(SIGNS), value(below - 1), value(below - 1)
            if left.kind == right.kind == "number" and right.value == 0:
                sign = "mul"  # such a quotient is refused
            return operated(sign, left, right)
        if kind < 0.85:
            name = draw.choice(UNARY)
            inner = tensor(below - 1)
            if name in UNBOUNDED:
                inner = applied("sigmoid", [inner])
            return applied(name, [inner])
        if kind < 0.93:
            return operated("where", condition(below - 1), value(below - 1), tensor(below - 1))
        return applied(draw.choice(("minimum", "maximum")), [tensor(below - 1), value(below - 1)])

    root = operated("add", tensor(depth), operated("mul", slope, Node("input", (), names[0])))
    for name in names[1:]:
        root = operated("add", root, operated("mul", Node("input", (), name), Node("input", (), names[0])))
    root = operated("where", mask, root, operated("sub", root, Node("input", (), names[0])))
    return finished(root, (*names, "m"), (("slope", 0.25),))


def _div(a, b):
    if b:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def _guarded(function, at_zero=math.nan):
    def call(a):
        if a != a:
            return a
        try:
            return function(a)
        except ValueError:
            return at_zero if a == 0 else math.nan
        except OverflowError:
            return math.inf

    return call


def _least(least):
    return lambda a, b: math.nan if a != a or b != b else least(a, b)


def _softplus(a, beta=1.0, threshold=20.0):
    return a if a * beta > threshold else math.log1p(math.exp(a * beta)) / beta


def _sigmoid(a):
    return 1 / (1 + math.exp(-a)) if a > -700 else math.exp(a)


def _clamped(a):
    return min(max(a + 3, 0), 6) / 6 if a == a else a


MEANING = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _div,
    "neg": lambda a: -a,
    "abs": abs,
    "sign": lambda a: float((a > 0) - (a < 0)),  # 0 for NaN, as torch's
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "indicator": float,
    "where": lambda c, a, b: a if c else b,
    "minimum": _least(min),
    "maximum": _least(max),
    "clamp_min": _least(max),
    "clamp_max": _least(min),
    "cast": lambda a: a,
    "exp": _guarded(math.exp),
    "expm1": _guarded(math.expm1),
    "log": _guarded(math.log, -math.inf),
    "log1p": _guarded(math.log1p),
    "sqrt": _guarded(math.sqrt),
    "rsqrt": lambda a: _div(1.0, _guarded(math.sqrt)(a)),
    "sin": _guarded(math.sin),
    "cos": _guarded(math.cos),
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": _sigmoid,
    "square": lambda a: a * a,
    "reciprocal": lambda a: _div(1.0, a),
    "relu": lambda a: a if a != a else max(a, 0.0),
    "leaky_relu": lambda a, slope: a if a > 0 else a * slope,
    "elu": lambda a, alpha: a if a > 0 else alpha * math.expm1(a),
    "gelu": lambda a: 0.5 * a * (1 + math.erf(a * math.sqrt(0.5))),
    "gelu_tanh": lambda a: 0.5 * a * (1 + math.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
    "silu": lambda a: a * _sigmoid(a),
    "mish": lambda a: a * math.tanh(_softplus(a)),
    "hardswish": lambda a: a * _clamped(a),
    "hardsigmoid": _clamped,
    "softplus": _softplus,
}
"""Each function of single numbers."""


def meaning(expression, **given):
    """Return the results of an expression at one point."""
    found = {}
    for node in expression.nodes:
        if node.op == "constant":
            found[node] = node.value
        elif node.op in ("input", "mask", "number"):
            found[node] = given[node.value]
        else:
            found[node] = MEANING[node.op](*(found[arg] for arg in node.args))
    return [found[root] for root in expression.roots]
