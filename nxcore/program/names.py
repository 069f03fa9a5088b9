"""Names: what a program can rebind that dynamo's guards leave out.

They take methods of classes, torch's own functions and the environment for fixed.
"""

from __future__ import annotations

import os
import random
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
        Objects and classes that dynamo has met: the methods of these classes are among them too, and what
        classes of classes have.

    Examples
    --------
    >>> names = Names(torch.nn.Sequential(torch.nn.Tanh()), torch.fx.symbolic_trace(torch.nn.Tanh()))
    >>> names.hold()
    True
    """

    def __init__(self, model: nn.Module, graph: fx.GraphModule, others: Iterable[object] = ()) -> None:
        met = [cls for other in others for cls in (type(other), other) if isinstance(cls, type)]
        found = [*_classes(map(type, model.modules())), *_classes(met)]
        self._classes = list(dict.fromkeys(found))
        self._spaces = [*map(vars, (*self._classes, nn.functional))]
        self._functions, self._held = _functions(graph), list[Held]()
        for cls, own in zip((*self._classes, object), self._spaces, strict=True):
            whole = issubclass(cls, type)
            self._held += [(own, name, own[name]) for name in own if whole or _code(own[name])]
        self._places = self._now()
        methods = {str(node.target) for node in graph.graph.nodes if node.op == "call_method"}
        self._methods = [(name, getattr(torch.Tensor, name, None)) for name in methods]
        self._environment = dict(_environment())

    def hold(self) -> bool:
        """Return whether all names have these values still.

        Each call needs it. So values are compared by their numbers first, of which there are hundreds.
        """
        if (places := self._now()) != self._places:
            if [*map(len, places)] != [*map(len, self._places)]:
                return False
            if any(where.get(name) is not value for where, name, value in self._held):
                return False
            self._places = places  # other values than code have changed, which dynamo guards
        return (
            all(getattr(torch.Tensor, name, None) is value for name, value in self._methods)
            and all(where.get(name) is value for where, name, value in self._functions)
            and _environment() == self._environment
        )

    def _now(self) -> list[list[int]]:
        return [[*map(id, own.values())] for own in self._spaces]


def draws(graph: fx.GraphModule, met: Iterable[object]) -> bool:
    """Return whether dynamo draws other numbers than the code: torch's for numpy's, or the same again."""
    homes = (getattr(getattr(n.target, "f", None), "__module__", "") for n in graph.graph.nodes)
    return "torch._numpy.random" in homes or any(isinstance(value, random.Random) for value in met)


def _environment() -> Mapping[Any, Any]:
    """Return the environment as the process has it: to decode it takes longer than all else here."""
    found: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return found


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
