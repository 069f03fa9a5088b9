"""Names: what a program can rebind that dynamo's guards leave out.

They take methods of classes, torch's own functions and the environment for fixed.
"""

from __future__ import annotations

import operator
import os
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

SPACES = (torch, nn.functional, torch._C._nn, torch.special, torch.linalg, torch.fft)
"""Where torch's functions are found."""

METHODS = (types.FunctionType, staticmethod, classmethod, property)
"""Types of values that a class has for its code."""

Held = tuple[Mapping[str, Any], str, Any]
"""A dictionary, a name, and the value that it has there."""


class Names:
    """The values that names have at present.

    Parameters
    ----------
    model : torch.nn.Module
        The methods of its modules' classes are among them.
    graph : torch.fx.GraphModule
        A graph of dynamo's, of which torch's functions are.
    others : iterable
        Objects that dynamo has met: the methods of their classes are among them too.

    Examples
    --------
    >>> names = Names(torch.nn.Sequential(torch.nn.Tanh()), torch.fx.symbolic_trace(torch.nn.Tanh()))
    >>> names.holds()
    True
    """

    def __init__(self, model: nn.Module, graph: fx.GraphModule, others: Iterable[object] = ()) -> None:
        found = [*_classes(map(type, model.modules())), *_classes(map(type, others))]
        self._classes = list(dict.fromkeys(found))
        held: list[Held] = _functions(graph)
        for space in (*self._classes, nn.functional):
            own = vars(space)
            held += [(own, name, own[name]) for name in own if _code(own[name])]
        self._where = [where for where, _, _ in held]
        self._names = [name for _, name, _ in held]
        self._values = [value for _, _, value in held]
        self._sizes = [*map(len, map(vars, self._classes))]
        methods = {node.target for node in graph.graph.nodes if node.op == "call_method"}
        self._methods = {str(name): getattr(torch.Tensor, str(name), None) for name in methods}
        self._environment = os.environ.copy()

    def holds(self) -> bool:
        """Return whether all names have these values still."""
        found = [where.get(name) for where, name in zip(self._where, self._names, strict=True)]
        return (
            all(map(operator.is_, found, self._values))
            and [*map(len, map(vars, self._classes))] == self._sizes
            and all(getattr(torch.Tensor, name, None) is value for name, value in self._methods.items())
            and os.environ == self._environment
        )


def _code(value: object) -> bool:
    """Return whether a class's value may be code: a method, or what describes an attribute."""
    return isinstance(value, METHODS) or hasattr(type(value), "__get__")


def _classes(found: Iterable[type]) -> Iterator[type]:
    """Yield classes, those that they inherit from, and those of what describes their attributes."""
    for cls in dict.fromkeys(found):
        for base in cls.__mro__:
            if base is object or base.__module__ == "builtins":
                continue
            yield base
            for value in vars(base).values():
                kind = type(value)
                if (
                    not isinstance(value, METHODS)
                    and hasattr(kind, "__get__")
                    and hasattr(kind, "__module__")
                ):
                    yield from (b for b in kind.__mro__ if b.__module__ not in ("builtins", "types"))


def _functions(graph: fx.GraphModule) -> list[Held]:
    """Return where torch has the functions that a graph calls."""
    held: list[Held] = []
    for node in graph.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if node.op == "call_function":
            held += [(vars(s), name, node.target) for s in SPACES if vars(s).get(name) is node.target]
    return held
