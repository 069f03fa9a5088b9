"""Functions applied to nodes as a user writes them: kinds are checked, and every misuse is explained."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable

import torch

from nxcore.errors import ExpressionError, nearest
from nxcore.expression.derived import mapped
from nxcore.expression.functions import FUNCTIONS, WRITTEN, call
from nxcore.expression.tree import ARITHMETIC, COMPARISONS, Expression, Node, constant, folded

MOST = 256
"""The most functions of one expression."""

POWERS = 8
"""The largest whole exponent."""

CASTS = ("float32", "float16", "bfloat16")
"""The dtypes that a value can be cast to."""

NAMES = WRITTEN | {"clamp", "pow"}
"""The functions that can be called by name."""


REDUCTIONS = frozenset(
    (
        *("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "any", "all", "std", "var", "norm"),
        *("cumsum", "softmax", "log_softmax", "logsumexp"),
    )
)
"""Functions of torch's that join elements."""


def advice(name: str) -> str:
    """Return what to add to a message about an unknown function.

    >>> advice("rellu")
    "; did you mean 'relu'?"
    """
    if name in REDUCTIONS:
        return "; it joins elements, and an expression computes each by itself: call it on the result"
    return nearest(name, NAMES)


def applied(name: str, args: list[Node]) -> Node:
    """Return the node of a function that is called by name.

    Raises
    ------
    ExpressionError
        If there is no such function, or the arguments don't fit it.
    """
    if name == "clamp":
        return _clamped(args)
    if name == "pow":
        _require_count(name, args, 2, 2)
        return power(*args)
    if name not in NAMES:
        raise ExpressionError(f"no function is named {name!r}{advice(name)}")
    function = FUNCTIONS[name]
    _require_count(name, args, len(function.args) - len(function.defaults), len(function.args))
    missing = len(function.args) - len(args)
    args = [*args, *map(constant, function.defaults[len(function.defaults) - missing :] if missing else ())]
    if name in ("minimum", "maximum"):
        return _least(name, *args)
    return operated(name, *args)


def operated(name: str, *args: Node) -> Node:
    """Return the node of a function with all its arguments: a sign's, or one of ``FUNCTIONS``.

    Raises
    ------
    ExpressionError
        If an argument is of the wrong kind.
    """
    function = FUNCTIONS[name]
    if name in ("and", "or", "not"):
        args = tuple(conditional(arg, f"the operand of {SIGNS[name]}") for arg in args)
        return call(name, *args)
    given = []
    for kind, arg in zip(function.args, args, strict=True):
        if kind == "c":
            given.append(conditional(arg, f"the first argument of {name}"))
        elif kind == "n" and arg.kind != "number":
            raise ExpressionError(
                f"{name} needs a number here, got a tensor; use where or minimum and maximum"
            )
        else:
            given.append(_valued(arg, name))
    if all(arg.kind == "number" for arg in given):
        if name == "div" and given[1].value == 0:
            raise ExpressionError("a number is divided by zero")
        if name not in ARITHMETIC:
            raise ExpressionError(f"{name} needs a tensor, got only numbers")
        return folded(name, *given)
    return call(name, *given)


SIGNS = {"and": "&", "or": "|", "not": "~"}


def conditional(node: Node, what: str) -> Node:
    """Return a node as truth values: an input becomes a tensor of bool.

    Raises
    ------
    ExpressionError
        If it is anything else.
    """
    if node.kind == "condition":
        return node
    if node.op == "input":
        return Node("mask", (), node.value, "condition")
    raise ExpressionError(f"{what} must be a comparison or a tensor of bool, such as x > 0")


def _valued(node: Node, name: str) -> Node:
    if node.kind != "condition":
        return node
    if name in ("add", "mul", "where"):  # torch adds no bool to bool, but counts True as 1 beside a number
        return call("indicator", node)
    raise ExpressionError(f"{name} needs numbers, got truth values; use where(condition, 1.0, 0.0)")


def _require_count(name: str, args: list[Node], least: int, most: int) -> None:
    if not least <= len(args) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise ExpressionError(f"{name} takes {wanted} argument{'s' * (most > 1)}, got {len(args)}")


def _least(name: str, a: Node, b: Node) -> Node:
    """Return the smaller or larger of two values, one of which may be a number."""
    if a.kind == "number":
        a, b = b, a
    if a.kind == "number":
        raise ExpressionError(f"{name} needs a tensor, got only numbers")
    if b.kind == "number":
        return operated("clamp_max" if name == "minimum" else "clamp_min", a, b)
    return operated(name, a, b)


def _clamped(args: list[Node]) -> Node:
    _require_count("clamp", args, 3, 3)
    if args[0].kind == "number":
        raise ExpressionError("clamp needs a tensor, got a number first")
    if any(arg.kind != "number" for arg in args[1:]):
        raise ExpressionError("clamp needs numbers as bounds, got a tensor; use minimum and maximum")
    return operated("clamp_max", operated("clamp_min", args[0], args[1]), args[2])


def power(base: Node, exponent: Node) -> Node:
    """Return a power as products and roots.

    Raises
    ------
    ExpressionError
        If the exponent isn't a small whole number, 0.5 or -0.5.
    """
    if exponent.op != "constant":
        raise ExpressionError("an exponent must be a constant; use exp(y * log(x)) for x ** y")
    value = exponent.value
    halves: dict[float, Callable[[], Node]] = {
        0.5: lambda: operated("sqrt", base),
        -0.5: lambda: operated("rsqrt", base),
        -1: lambda: operated("reciprocal", base),
        2: lambda: operated("square", base),
    }
    if value in halves and isinstance(value, int | float):
        return halves[value]()
    if not isinstance(value, int) and not (isinstance(value, float) and value.is_integer()):
        raise ExpressionError(f"an exponent must be a whole number, 0.5 or -0.5, got {value}")
    whole = int(value)
    if not 1 <= whole <= POWERS:
        raise ExpressionError(f"an exponent must be -1 or from 1 to {POWERS}, got {whole}")
    return _multiplied(base, whole)


def _multiplied(base: Node, times: int) -> Node:
    """Return a power by squares of halves."""
    if times == 1:
        return base
    squared = _multiplied(operated("square", base), times // 2)
    return operated("mul", base, squared) if times % 2 else squared


def cast(node: Node, dtype: str) -> Node:
    """Return a value as another dtype sees it: promotion follows it, all is computed as before."""
    if dtype not in CASTS:
        raise ExpressionError(f"a cast must be to {', '.join(CASTS)}, got {dtype}")
    if node.kind == "number":
        raise ExpressionError(f"{dtype} needs a tensor, got a number")
    value = call("indicator", node) if node.kind == "condition" else node
    return Node("cast", (value,), dtype)


def number(value: object) -> Node:
    """Return the node of a constant.

    Raises
    ------
    ExpressionError
        If it isn't a real number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionError(f"needs numbers and tensors, got {type(value).__name__}")
    try:
        float(value)
    except OverflowError:
        raise ExpressionError(f"a constant must fit a double, got one of {len(str(value))} digits") from None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ExpressionError(f"a whole constant must fit 64 bits, got {value}; use {float(value)}")
    return constant(value)


def finished(
    root: Node, tensors: tuple[str, ...], numbers: tuple[tuple[str, int | float], ...]
) -> Expression:
    """Return the expression of a tree and its parameters.

    Raises
    ------
    ExpressionError
        If it computes nothing, has no tensor, leaves a parameter out, or is too large.
    """
    if root.op == "input":
        raise ExpressionError(f"an expression must compute something, got only {root.value}")
    if root.kind == "number":
        raise ExpressionError(f"an expression needs a tensor, got only numbers: {root.value or root.op}")
    found = Expression(tensors, numbers, (root,))
    masks = found.masks

    def made(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "input" and node.value in masks:
            return call("indicator", Node("mask", (), node.value, "condition"))
        return node if args == node.args else Node(node.op, args, node.value, node.kind)

    if masks:
        found = Expression(tensors, numbers, mapped((root,), made))
    if root.kind == "condition":
        raise ExpressionError(
            "an expression must give numbers, got truth values; use where(condition, 1.0, 0.0)"
        )
    for name in (*tensors, *(name for name, _ in numbers)):
        if name not in found.used:
            raise ExpressionError(f"the parameter {name!r} is not used")
    if found.operations > MOST:
        raise ExpressionError(f"an expression has at most {MOST} functions, got {found.operations}")
    return found


RESERVED = frozenset(
    {
        "AttributeError",
        "Exception",
        "KeyError",
        "NUMBERS",
        "None",
        "PLAIN",
        "RARE",
        "RuntimeError",
        "Tensor",
        "TypeError",
        "absolute",
        "alike",
        "any",
        "autocast",
        "autocast_state",
        "bool",
        "counts",
        "deterministic",
        "dict",
        "dispatch_modes",
        "dtype",
        "error",
        "float",
        "forward_ad",
        "function_modes",
        "functional",
        "functorch",
        "generator",
        "grad",
        "grad_enabled",
        "int",
        "is_compiling",
        "is_nested",
        "kernels",
        "key",
        "leads_to",
        "len",
        "list",
        "map",
        "met",
        "near",
        "only_default_device",
        "out",
        "output_mask",
        "overlap",
        "plan",
        "preference",
        "promoted",
        "reference",
        "requested",
        "result",
        "self",
        "stored",
        "summed",
        "torch",
        "tracing",
        "tuple",
        "type",
        "widened",
    }
)
"""Names with a meaning in the code around an expression: no parameter can have them."""


def require_name(name: str) -> None:
    """Raise unless a tensor or a number can have this name.

    Raises
    ------
    ExpressionError
        If the name has a meaning in generated code.
    """
    parts = ("default_", "guard_", "static_", "draw_")
    taken = name in RESERVED or name.startswith(("_", *parts)) or name.endswith(("_given", "_size"))
    if taken or keyword.iskeyword(name) or re.fullmatch(r"t\d+", name):
        raise ExpressionError(f"{name!r} can't be the name of a parameter, since generated code uses it")


DTYPES = {getattr(torch, name): name for name in CASTS}
COMPARED = frozenset(COMPARISONS)
