"""Expressions made of an expression: its gradient, the scale of its rounding errors, and its simple form."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from nxcore.expression.functions import BY_RESULT, FUNCTIONS, call, where
from nxcore.expression.tree import LEAVES, Expression, Node, constant

GRAD = "grad"
"""The name of the gradient's first tensor."""

ROUNDOFFS = 2.0**24
"""The units in 1 that rounding errors are counted in: the roundoff of float32."""


RESULT = "result"
"""The name of the tensor that is the forward operator's result."""


def gradient(expression: Expression, *, by_result: bool = False) -> tuple[Node | None, ...]:
    """Return the gradient of each tensor of an expression of one result.

    None where there is none: for a tensor of bool, and for one that only decides, such as in ``x > 0``.
    ``by_result`` gives it in terms of the result, where the expression is one function of which torch saves
    that.
    """
    (root,) = expression.roots
    if by_result and root.op in BY_RESULT and root.args[0].op == "input":
        return (BY_RESULT[root.op](Node("input", (), GRAD), Node("input", (), RESULT)),)
    adjoint: dict[Node, Node] = {root: Node("input", (), GRAD)}
    for node in reversed(expression.nodes):
        grad = adjoint.get(node)
        if grad is None or node.op in LEAVES:
            continue
        derivative = FUNCTIONS[node.op].derivative
        found = derivative(grad, node, *node.args) if derivative else (None,) * len(node.args)
        for arg, part in zip(node.args, found, strict=True):
            if part is not None and arg.kind == "value":
                adjoint[arg] = adjoint[arg] + part if arg in adjoint else part
    leaves = (Node("input", (), name) for name in expression.tensors)
    return tuple(map(adjoint.get, leaves))


def simple(expression: Expression) -> Expression:
    """Return the same in terms of the functions that every printer knows."""

    def made(node: Node, args: tuple[Node, ...]) -> Node:
        made_of = FUNCTIONS[node.op].made_of if node.op in FUNCTIONS else None
        if made_of is None:
            return node if args == node.args else Node(node.op, args, node.value, node.kind)
        return _mapped(made_of(*args), made)

    return Expression(expression.tensors, expression.numbers, mapped(expression.roots, made))


def mapped(roots: tuple[Node, ...], made: Callable[[Node, tuple[Node, ...]], Node]) -> tuple[Node, ...]:
    """Return the trees with ``made(node, new_arguments)`` in place of every node."""
    found: dict[Node, Node] = {}
    for node in Expression((), (), roots).nodes:
        found[node] = made(node, tuple(found[arg] for arg in node.args))
    return tuple(found[root] for root in roots)


def _mapped(root: Node, made: Callable[[Node, tuple[Node, ...]], Node]) -> Node:
    return mapped((root,), made)[0]


def scale(expression: Expression) -> Expression:
    """Return the scales of the rounding errors: what float32 may lose, in units of its roundoff.

    An error of a function's own is relative to its result; one of an argument grows by the derivative. A
    constant loses what float32 lacks of it: 1.02 in ``x - 1.02``, of which little may be left.
    """
    zero, one = constant(0), constant(1)
    scales: dict[Node, Node] = {}
    plain = simple(expression)
    for node in plain.nodes:
        if node.op in LEAVES or node.kind != "value":
            scales[node] = constant(_lost(node))
            continue
        function = FUNCTIONS[node.op]
        total = zero
        parts = function.derivative(one, node, *node.args) if function.derivative else ()
        for arg, part in zip(node.args, parts, strict=False):
            if part is not None and scales[arg] != zero:
                total = total + _grown(_defined(part), scales[arg])
        if function.error:
            total = total + _absolute(node) * function.error
        scales[node] = total
    # An exact result has errors too where it is rounded to its dtype.
    roots = (scales[root] + _absolute(root) for root in plain.roots)
    return Expression(expression.tensors, expression.numbers, tuple(roots))


def _lost(node: Node) -> float:
    """Return what a constant loses as float32, in units of the roundoff of 1; 0 for any other node."""
    if node.op != "constant" or not isinstance(node.value, int | float) or not math.isfinite(node.value):
        return 0
    try:
        (kept,) = struct.unpack("<f", struct.pack("<f", node.value))
    except OverflowError:  # it is infinite there
        return 0
    return abs(node.value - kept) * ROUNDOFFS or 0


def _defined(node: Node) -> Node:
    """Return a derivative with quotients of numbers that may be divided by zero, as those of tensors may."""

    def made(node: Node, args: tuple[Node, ...]) -> Node:
        op = "quotient" if node.op == "div" and node.kind == "number" else node.op
        return Node(op, args, node.value, node.kind)

    return _mapped(node, made)


def _grown(derivative: Node, error: Node) -> Node:
    """Return an argument's error in the result: none where that doesn't depend on it, such as at infinity."""
    if derivative.kind == "number":
        return _absolute(derivative) * error
    return where(call("eq", derivative, 0), 0, _absolute(derivative) * error)


def _absolute(node: Node) -> Node:
    if node.op == "constant" and isinstance(node.value, int | float):
        return constant(abs(node.value))
    if node.kind == "number":
        return Node("magnitude", (node,), kind="number")
    return call("abs", node)
