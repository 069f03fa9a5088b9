"""Expressions as plain data, such as JSON holds: in recordings, in a worker's task, in a pickled operator.

Data of elsewhere is checked as a text is, since code is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nxcore.errors import ExpressionError
from nxcore.expression import build
from nxcore.expression.functions import FUNCTIONS
from nxcore.expression.tree import LEAVES, Expression, Line, of_lines

KINDS = {"input": "value", "mask": "condition", "number": "number", "constant": "number"}
"""The kind of each leaf."""


def data(expression: Expression) -> list[Any]:
    """Return an expression of one result as plain data: names of tensors, numbers, and nodes in order.

    >>> data(nxcore.pointwise("x * a", a=2).spec.expression)[:2]
    [['x'], [['a', 2]]]
    """
    return [list(expression.tensors), list(map(list, expression.numbers)), list(expression.lines())]


def of_data(found: Any) -> Expression:
    """Return the expression of plain data.

    Raises
    ------
    ExpressionError
        If the data is none: a name or a function that no expression can have, for one.
    """
    try:
        tensors, numbers, lines = found
        names, defaults = [_name(name) for name in tensors], {_name(n): _number(v) for n, v in numbers}
        nodes = [_line(line, i, names, defaults) for i, line in enumerate(lines)]
        made = of_lines(names, defaults.items(), nodes, [len(nodes) - 1])
    except ExpressionError:
        raise
    except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ExpressionError(f"an expression can't be made of {str(found)[:80]}: {why}") from None
    (root,) = made.roots
    return build.finished(root, made.tensors, made.numbers)  # the rules of an expression as a whole


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ExpressionError(f"{name!r} can't be the name of a parameter")
    build.require_name(name)
    return name


def _number(value: Any) -> int | float:
    node = build.number(value)
    if not isinstance(node.value, int | float):
        raise TypeError(value)
    return node.value


def _line(line: Sequence[Any], at: int, tensors: Sequence[str], numbers: Mapping[str, Any]) -> Line:
    """Return the line of a node, whose arguments precede it."""
    op, places, value, kind = line
    args = tuple(map(int, places))
    if op in LEAVES:
        known = tensors if op in ("input", "mask") else numbers
        right = not args and kind == KINDS[op] and (op == "constant" or value in known)
        value = _number(value) if op == "constant" else value
    else:
        function = FUNCTIONS[op]
        kinds = ("condition",) if function.gives == "condition" else ("value", "number")
        right = len(args) == len(function.args) and kind in kinds and all(0 <= i < at for i in args)
        right = right and (value in (*build.CASTS, *tensors) if op == "cast" else value is None)
    if not right:
        raise ExpressionError(f"an expression has no node {line!r}")
    return op, args, value, kind
