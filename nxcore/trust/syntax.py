"""Python's syntax as text that comments and formatting don't change, the same under every Python."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

SPECS = frozenset({"OpSpec", "backward_of"})
APART = frozenset(
    [
        "autocast",
        "check",
        "cost",
        "errors",
        "gradient",
        "idioms",
        "idle",
        "sketches",
        "view",
        "settled",
        "ways",
        "whole",
        "yardsticks",
    ]
)
"""Arguments of a spec that don't decide which results are right: how it is called, divided and timed."""

PLAIN = frozenset(
    [
        "cache",
        "cached_property",
        "classmethod",
        "contextmanager",
        "dataclass",
        "lru_cache",
        "property",
        "staticmethod",
        "wraps",
    ]
)
"""Decorators that read no annotations of a function; a compiler may."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)
Import = ast.Import | ast.ImportFrom

_IDLE = frozenset({"ctx", "kind", "type_comment", "type_ignores", "simple"})


@dataclass
class Spelt:
    """Pieces of syntax: the normalised ``text`` of each, their ``strings``, and ``imports`` inside of them.

    ``paths`` are the names that they use, with attributes: ``("torch", "add")``. ``apart`` are the arguments
    of a spec that don't count; it matters where ``specs`` says that one is among them.
    """

    apart: frozenset[str] = frozenset()
    text: list[str] = field(default_factory=list)
    paths: set[tuple[str, ...]] = field(default_factory=set)
    imports: list[Import] = field(default_factory=list)
    strings: set[str] = field(default_factory=set)
    specs: bool = False

    def add(self, node: Any) -> None:
        """Add a node, without docstrings, what errors say, and annotations that no decorator reads."""
        kind, text = node.__class__, self.text
        if kind is ast.Name:
            text.append(node.id)
            self.paths.add((node.id,))
        elif kind is ast.Constant:
            text.append(repr(node.value))
            if node.value.__class__ is str:
                self.strings.add(node.value)
        elif kind is ast.Attribute and (path := dotted(node)):
            text.append(".".join(path))
            self.paths.add(path)
        elif kind in IMPORTS:
            self.imports.append(node)
        elif kind is ast.Raise:
            text.append("Raise")
        else:
            text.append(kind.__name__)
            skipped = self._skipped(node, kind)
            for name in kind._fields:
                value = None if name in skipped else getattr(node, name, None)
                if value or value.__class__ is int:  # later Pythons have more fields, which are empty
                    text.append(name)
                    self._add_field(node, value)
            text.append(")")

    def _add_field(self, node: ast.AST, value: Any) -> None:
        if isinstance(value, ast.AST):
            self.add(value)
        elif value.__class__ is not list:
            self.text.append(repr(value))
        else:
            for item in value:
                if not isinstance(item, ast.AST):
                    self.text.append(repr(item))
                elif not (is_text(item) or self._apart(node, item)):
                    self.add(item)
            self.text.append("]")

    def _skipped(self, node: Any, kind: type) -> frozenset[str]:
        """Return the fields that don't count."""
        if kind in FUNCTIONS and all(last(d) in PLAIN for d in node.decorator_list):
            for arg in ast.walk(node.args):
                if isinstance(arg, ast.arg):
                    arg.annotation = None
            return _IDLE | {"returns"}
        if kind is ast.AnnAssign:
            return _IDLE | {"annotation"}
        return _IDLE | {"msg"} if kind is ast.Assert else _IDLE

    def _apart(self, node: Any, item: ast.AST) -> bool:
        if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some of them with an empty text
            return isinstance(item, ast.Constant) and item.value == ""
        if not (isinstance(item, ast.keyword) and isinstance(node, ast.Call) and last(node) in SPECS):
            return False
        self.specs = True
        return item.arg in self.apart


def dotted(node: Any) -> tuple[str, ...]:
    """Return the names of ``a.b.c``; empty where it doesn't begin with a name.

    >>> dotted(ast.parse("torch.nn.Module", mode="eval").body)
    ('torch', 'nn', 'Module')
    """
    names: list[str] = []
    while node.__class__ is ast.Attribute:
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if node.__class__ is ast.Name else ()


def last(node: Any) -> str:
    """Return the last name of what is called or of a decorator, with or without arguments."""
    node = node.func if isinstance(node, ast.Call) else node
    return (dotted(node) or ("",))[-1]


def is_text(node: ast.AST) -> bool:
    """Return whether a statement is a string: documentation."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds, but for its imports'.

    >>> list(bound(ast.parse("a, b = 1, 2").body[0]))
    ['a', 'b']
    """
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, IMPORTS) and node is not statement:
            yield from (name for name, *_ in imported([node], ""))


def imported(imports: Iterable[Import], package: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, module and attribute of imports in a package; no attribute for a module.

    >>> list(imported(ast.parse("from torch import nn as n; import numpy.linalg").body, ""))
    [('n', 'torch', 'nn'), ('numpy', 'numpy', '')]
    """
    for node in imports:
        if isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((alias.asname or alias.name, module, alias.name) for alias in node.names)
        else:
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name, "") if alias.asname else (top, top, "")
