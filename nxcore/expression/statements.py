"""A tree as statements of a language: one a function, in an order in which arguments come first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nxcore.expression.tree import LEAVES, Expression, Node


@dataclass(frozen=True)
class Statement:
    """One assignment.

    Attributes
    ----------
    name : str
        What is assigned.
    value : str
        The right side.
    node : Node
        What it computes.
    needed : frozenset of int
        The results that need it.
    """

    name: str
    value: str
    node: Node
    needed: frozenset[int]


@dataclass(frozen=True)
class Statements:
    """An expression in a language.

    Attributes
    ----------
    lines : tuple of Statement
    results : tuple of str
        The name of each result.

    Examples
    --------
    >>> tree = nxcore.pointwise("x + exp(x)").spec.expression
    >>> found = Statements.of(tree, {"add": "{0} + {1}", "exp": "exp({0})"}, repr)
    >>> [f"{line.name} = {line.value}" for line in found.lines]
    ['t0 = exp(x)', 't1 = x + t0']
    """

    lines: tuple[Statement, ...]
    results: tuple[str, ...]

    @classmethod
    def of(
        cls,
        expression: Expression,
        templates: Mapping[str, str],
        literal: Callable[[float], str],
        leaf: Callable[[Node], str] = lambda node: str(node.value),
    ) -> Statements:
        """Return the statements of an expression.

        Parameters
        ----------
        expression : Expression
        templates : Mapping
            Function -> its text, with ``{0}`` for the first argument.
        literal : callable
            ``literal(number)``: the text of a constant.
        leaf : callable
            ``leaf(node)``: the name of a parameter.
        """
        needed: dict[Node, frozenset[int]] = {}
        for i, root in enumerate(expression.roots):
            for node in Expression((), (), (root,)).nodes:
                needed[node] = needed.get(node, frozenset()) | {i}
        names: dict[Node, str] = {}
        lines: list[Statement] = []
        for node in expression.nodes:
            if node.op == "constant" and isinstance(node.value, int | float):
                names[node] = literal(node.value)
            elif node.op in LEAVES:
                names[node] = leaf(node)
            else:
                text = templates[node.op].format(*(names[arg] for arg in node.args), of=node.value)
                names[node] = f"t{len(lines)}"
                lines.append(Statement(names[node], text, node, needed[node]))
        return cls(tuple(lines), tuple(names[root] for root in expression.roots))


def spelled(value: float, *, infinity: str, nan: str, form: str = "{}") -> str:
    """Return a constant in a language that has no signs of its own for infinity and NaN.

    >>> spelled(float("-inf"), infinity="INFINITY", nan="NAN")
    '(-INFINITY)'
    """
    value = float(value)
    if math.isnan(value):
        return nan
    if math.isinf(value):
        return infinity if value > 0 else f"(-{infinity})"
    text = form.format(repr(value))
    return text if value >= 0 and not text.startswith("-") else f"({text})"
