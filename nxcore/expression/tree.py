"""A tree of pointwise functions, and an expression: its parameters and one tree a result.

Equal trees have equal digests, whichever way they were written: common parts occur once, and the order of
what may be exchanged has no effect.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Kind = Literal["value", "condition", "number"]
"""The kind of a node's values: numbers of a tensor, truth values of one, or one number."""

COMMUTATIVE = frozenset({"add", "mul", "minimum", "maximum", "and", "or", "eq", "ne"})

LEAVES = frozenset({"input", "mask", "number", "constant"})


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A function of other nodes, or a leaf.

    Attributes
    ----------
    op : str
        The function's name; ``input``, ``mask`` (a tensor of bool), ``number`` or ``constant`` for a leaf.
    args : tuple of Node
    value : int, float or str, optional
        A constant's value, a leaf's name, or the dtype of a cast: its name, or that of a tensor which has it.
    kind : str
    """

    op: str
    args: tuple[Node, ...] = ()
    value: int | float | str | None = None
    kind: Kind = "value"
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        parts = [arg.digest for arg in self.args]
        if self.op in COMMUTATIVE:
            parts.sort()
        head = f"{self.op} {self.value!r} {len(parts)};".encode()
        object.__setattr__(self, "digest", hashlib.sha256(head + b"".join(parts)).digest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __add__(self, other: Node | float) -> Node:
        other = constant(other)
        if other.value == 0 and other.op == "constant":
            return self
        if self.value == 0 and self.op == "constant":
            return other
        return folded("add", self, other)

    def __sub__(self, other: Node | float) -> Node:
        other = constant(other)
        return self if other.op == "constant" and other.value == 0 else folded("sub", self, other)

    def __rsub__(self, other: float) -> Node:
        return constant(other) - self

    def __mul__(self, other: Node | float) -> Node:
        other = constant(other)
        for one, rest in ((self, other), (other, self)):
            if one.op == "constant" and one.value == 1:
                return rest
            if one.op == "constant" and one.value == -1:
                return -rest
        return folded("mul", self, other)

    def __truediv__(self, other: Node | float) -> Node:
        other = constant(other)
        return self if other.op == "constant" and other.value == 1 else folded("div", self, other)

    def __neg__(self) -> Node:
        return self.args[0] if self.op == "neg" else folded("neg", self)

    __radd__, __rmul__ = __add__, __mul__


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
}
"""The functions of numbers, which Python itself computes."""


def folded(op: str, *args: Node) -> Node:
    """Return a node of arithmetic; a constant for constants."""
    if all(arg.op == "constant" for arg in args):
        try:
            found = ARITHMETIC[op](*(arg.value for arg in args))
            return constant(found if -(2**63) <= found < 2**64 else float(found))  # torch's whole numbers
        except (ZeroDivisionError, OverflowError):
            pass
    numbers = all(arg.kind == "number" for arg in args)
    return Node(op, args, kind="number" if numbers else "value")


def constant(value: Node | float) -> Node:
    """Return a node for a number; a node is returned as it is."""
    return value if isinstance(value, Node) else Node("constant", (), value, "number")


def ordered(roots: Iterable[Node]) -> list[Node]:
    """Return every node below ``roots`` once, arguments first."""
    found: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if node in found:
            continue
        if expanded:
            found[node] = None
        else:
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
    return list(found)


Line = tuple[str, tuple[int, ...], Any, Kind]


@dataclass(frozen=True)
class Expression:
    """Trees with one list of parameters, as data.

    Attributes
    ----------
    tensors : tuple of str
        The names of its tensors, in the order of the signature.
    numbers : tuple of (str, number)
        The names and defaults of its numbers, which follow.
    roots : tuple of Node
        One a result.
    """

    tensors: tuple[str, ...]
    numbers: tuple[tuple[str, int | float], ...]
    roots: tuple[Node, ...]

    @cached_property
    def nodes(self) -> list[Node]:
        """Every node once, arguments first."""
        return ordered(self.roots)

    @property
    def used(self) -> frozenset[str]:
        """The names of the parameters that occur in the trees."""
        return frozenset(str(n.value) for n in self.nodes if n.op in ("input", "mask", "number"))

    @property
    def masks(self) -> frozenset[str]:
        """The names of the tensors of bool."""
        return frozenset(str(n.value) for n in self.nodes if n.op == "mask")

    @property
    def operations(self) -> int:
        """The number of functions of tensors, common ones counted once."""
        return sum(node.op not in LEAVES and node.kind != "number" for node in self.nodes)

    @cached_property
    def key(self) -> str:
        """A digest of parameters, defaults and trees: the same in every process."""
        parts = [*self.tensors, "", *map(repr, self.numbers), *(root.digest.hex() for root in self.roots)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def lines(self) -> tuple[Line, ...]:
        """Return the nodes as plain data, each with the numbers of its arguments, which precede it."""
        places = {node: i for i, node in enumerate(self.nodes)}
        return tuple((n.op, tuple(places[a] for a in n.args), n.value, n.kind) for n in self.nodes)

    def __reduce__(self) -> tuple[Any, ...]:  # a deep tree would be a deep recursion
        places = {node: i for i, node in enumerate(self.nodes)}
        return of_lines, (self.tensors, self.numbers, self.lines(), tuple(places[r] for r in self.roots))

    def __str__(self) -> str:
        return ", ".join(map(spelt, self.roots))


def of_lines(
    tensors: Iterable[str], numbers: Iterable[Any], lines: Iterable[Any], roots: Iterable[int]
) -> Expression:
    """Return the expression of plain data, as ``Expression.lines`` gives it; JSON may have been between."""
    nodes: list[Node] = []
    for op, places, value, kind in lines:
        nodes.append(Node(str(op), tuple(nodes[i] for i in places), value, kind))
    given = tuple((str(name), default) for name, default in numbers)
    return Expression(tuple(map(str, tensors)), given, tuple(nodes[i] for i in roots))


COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

INFIX = {name: (0, sign) for name, sign in COMPARISONS.items()} | {
    "or": (1, "|"),
    "and": (2, "&"),
    "add": (3, "+"),
    "sub": (3, "-"),
    "mul": (4, "*"),
    "div": (4, "/"),
}
"""The binding strength and the sign of each binary operator, as in Python."""

PREFIX = 5
"""The binding strength of a sign in front."""

LONGEST = 200
"""The most characters of a tree's text: one with common parts may be endless on a line."""


def spelt(root: Node) -> str:
    """Return a tree as a user would write it, shortened where it is long.

    >>> spelt(Node("mul", (Node("input", (), "x"), constant(2))))
    'x * 2'
    """
    text = "".join(itertools.islice(_spelt(root, -1), LONGEST))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _spelt(node: Node, around: int) -> Iterator[str]:
    """Yield the parts of a node's text; ``around`` is the strength of the operator that takes it."""
    if node.op in LEAVES:
        yield f"{node.value}"
    elif node.op in INFIX:
        own, sign = INFIX[node.op]
        yield "(" * (own <= around)
        yield from _spelt(node.args[0], own if own == 0 else own - 1)
        yield f" {sign} "
        yield from _spelt(node.args[1], own)
        yield ")" * (own <= around)
    elif node.op in ("neg", "not"):
        yield "-" if node.op == "neg" else "~"
        yield from _spelt(node.args[0], PREFIX)
    else:
        yield f"{node.op}("
        for i, arg in enumerate(node.args):
            yield ", " * bool(i)
            yield from _spelt(arg, -1)
        yield f", {node.value})" if node.op == "cast" else ")"
