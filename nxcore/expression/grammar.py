"""Expressions from text: parsed by Python's grammar into an allow-list, never evaluated."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from nxcore.errors import ExpressionError
from nxcore.expression import build
from nxcore.expression.tree import Expression, Node

LONGEST = 10_000
"""The most characters of a text."""

BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.BitAnd: "and", ast.BitOr: "or"}
COMPARED = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}

INSTEAD: dict[type[ast.AST], str] = {
    ast.IfExp: "a choice is written where(condition, a, b)",
    ast.BoolOp: "conditions are joined by & and |, each in brackets",
    ast.Attribute: "an attribute can't be in an expression; write relu(x), not x.relu()",
    ast.Subscript: "an index can't be in an expression: every tensor is taken whole",
    ast.Lambda: "a function can't be in an expression",
    ast.MatMult: "a product of matrices is no pointwise function",
    ast.FloorDiv: "// can't be in an expression; use /",
    ast.Mod: "% can't be in an expression",
    ast.JoinedStr: "a formatted text can't be in an expression",
    **dict.fromkeys(
        (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "a loop can't be in an expression"
    ),
    ast.NamedExpr: "an assignment can't be in an expression; a part written twice is computed once",
}


STATEMENTS = {
    "if": "a choice is written where(condition, a, b)",
    "return": "leave out return",
    "def": "a function is given as a function, without quotes",
}
"""The advice for a statement, by its first word."""


def parsed(text: str, numbers: Mapping[str, int | float]) -> Expression:
    """Return the expression of a text; names that are no functions and no numbers are its tensors.

    Parameters
    ----------
    text : str
        Such as ``"relu(x) * y + slope * z"``.
    numbers : Mapping
        The names and defaults of its numbers.

    Raises
    ------
    ExpressionError
        If the text is no expression; it points at the place.
    """
    for name in numbers:
        build.require_name(name)
    if len(text) > LONGEST:
        raise ExpressionError(f"a text has at most {LONGEST} characters, got {len(text)}")
    return _Reader(text, numbers).expression()


class _Reader:
    """Reads one text."""

    def __init__(self, text: str, numbers: Mapping[str, int | float]) -> None:
        self.text, self.numbers = text, dict(numbers)
        self.tensors: dict[str, None] = {}
        self.line, self.start = text, 0

    def expression(self) -> Expression:
        # On one line, so that a text may have several, and every place is a column.
        line = self.text.translate({ord(c): " " for c in "\n\r\f\t"})
        self.start = len(line) - len(line.lstrip())
        self.line = line.strip()
        if not self.line:
            raise self._at(0, "this is no expression: the text is empty")
        if "#" in line:
            raise self._at(line.index("#"), "a comment can't be in an expression")
        try:
            found = ast.parse(self.line, mode="eval").body
        except SyntaxError as error:
            column = self.start + max((error.offset or 1) - 1, 0)
            why = STATEMENTS.get(self.line.split(maxsplit=1)[0], error.msg)
            raise self._at(min(column, len(self.text)), f"this is no expression: {why}") from None
        except (ValueError, MemoryError, RecursionError) as error:
            raise ExpressionError(f"the text can't be parsed: {error or type(error).__name__}") from None
        try:
            root = self._node(found)
        except RecursionError:
            raise ExpressionError("the text has too many brackets within brackets") from None
        try:
            return build.finished(root, tuple(self.tensors), tuple(self.numbers.items()))
        except ExpressionError as error:
            raise self._at(self.start, str(error)) from None

    def _at(self, column: int, message: str) -> ExpressionError:
        return ExpressionError(message, text=self.text, column=column)

    def _place(self, node: ast.AST) -> int:
        # ast counts bytes.
        before = self.line.encode()[: getattr(node, "col_offset", 0)]
        return self.start + len(before.decode(errors="ignore"))

    def _node(self, node: ast.expr) -> Node:
        """Return a node; an error without a place gets this one's."""
        try:
            return self._read(node)
        except ExpressionError as error:
            if error.column >= 0:
                raise
            raise self._at(self._place(node), str(error)) from None

    def _read(self, node: ast.expr) -> Node:
        if isinstance(node, ast.Constant):
            return build.number(node.value)
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.UnaryOp):
            return self._signed(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Compare):
            if len(node.ops) > 1:
                raise ExpressionError("comparisons can't be chained; use (a < b) & (b < c)")
            sign = COMPARED.get(type(node.ops[0]))
            if sign is None:
                raise ExpressionError("in and is compare no tensors; use == or <")
            return build.operated(sign, self._node(node.left), self._node(node.comparators[0]))
        if isinstance(node, ast.Call):
            return self._call(node)
        raise ExpressionError(INSTEAD.get(type(node), f"{_called(node)} can't be in an expression"))

    def _name(self, name: str) -> Node:
        if name in self.numbers:
            return Node("number", (), name, "number")
        if name in build.NAMES or name in build.CASTS:
            raise ExpressionError(f"{name} is a function: it needs arguments in brackets")
        build.require_name(name)
        self.tensors[name] = None
        return Node("input", (), name)

    def _signed(self, node: ast.UnaryOp) -> Node:
        operand = self._node(node.operand)
        if isinstance(node.op, ast.USub):
            return build.operated("neg", operand)
        if isinstance(node.op, ast.Invert):
            return build.operated("not", operand)
        if isinstance(node.op, ast.Not):
            raise ExpressionError("a condition is negated by ~, with brackets around it")
        return operand

    def _binary(self, node: ast.BinOp) -> Node:
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):  # a long sum would be a deep recursion
            chain.append(chain[-1].left)
        found = self._node(chain[-1].left)
        for link in reversed(chain):
            right = self._node(link.right)
            try:
                found = self._joined(link.op, found, right)
            except ExpressionError as error:
                raise self._at(self._place(link), str(error)) from None
        return found

    def _joined(self, sign: ast.operator, left: Node, right: Node) -> Node:
        if isinstance(sign, ast.Pow):
            return build.power(left, right)
        if type(sign) not in BINARY:
            raise ExpressionError(INSTEAD.get(type(sign), f"{type(sign).__name__} can't be in an expression"))
        return build.operated(BINARY[type(sign)], left, right)

    def _call(self, node: ast.Call) -> Node:
        if not isinstance(node.func, ast.Name):
            raise ExpressionError(INSTEAD.get(type(node.func), "only functions are called, by name"))
        if node.keywords:
            raise ExpressionError(f"{node.func.id} takes its arguments in order, without names")
        name = node.func.id
        if name not in build.NAMES and name not in build.CASTS:
            build.applied(name, [])  # raises before an argument does
        args = [self._node(arg) for arg in node.args]
        if name in build.CASTS:
            if len(args) != 1:
                raise ExpressionError(f"{name} takes 1 argument, got {len(args)}")
            return build.cast(args[0], name)
        return build.applied(name, args)


def _called(node: ast.AST) -> str:
    return f"a {type(node).__name__.lower()}"
