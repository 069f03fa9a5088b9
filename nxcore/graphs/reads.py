"""Reads: what a module's own code reads beside its modules, its tensors, its constants and its arguments.

A replay repeats what a call computed, with the values of Python that it had. Those that ``Inside`` tests may
be read: attributes of the module, and names of its file. Code that reads or changes others can't be replayed,
for these may differ in each call.
"""

from __future__ import annotations

import builtins
import dis
import math
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.graphs.snapshot import OWN
from nxcore.graphs.structure import CONSTANTS

BUILTINS = {
    *("abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max"),
    *("min", "range", "reversed", "round", "slice", "sorted", "str", "sum", "super", "tuple", "zip"),
    *("True", "False", "None", "AssertionError", "Exception", "NotImplementedError", "RuntimeError"),
    *("TypeError", "ValueError"),
}
"""Builtin functions and types whose results depend on their arguments alone, and exceptions."""

STATES = {
    *("manual_seed", "manual_seed_all", "seed", "seed_all", "initial_seed", "fork_rng", "Generator"),
    *("get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all", "default_generator"),
}
"""Names of torch that read or set the state of a random generator, which every call finds another."""

REFUSED = {
    *("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME"),
    *("IMPORT_NAME", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_BUILD_CLASS"),
}
"""Instructions that change what may outlive a call, or read names where no test of them is known."""

Held = tuple[dict[str, Any], str, Any]
"""A dictionary, a name, and the value that it has there."""


class Unclear(Exception):  # noqa: N818  not an error: the reason why a module isn't replayed
    """Code that may depend on more than a test of its module covers."""


def reads_of(module: nn.Module, cls: type[nn.Module] | None = None) -> list[Held]:
    """Return the names outside of ``module`` that its ``forward`` reads, with their values.

    ``cls`` is the class whose code that is, by default the module's.

    Raises
    ------
    Unclear
        If it may read or change more than these, its attributes and its arguments.

    Examples
    --------
    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         return 2 * torch.relu(x)
    >>> [name for _, name, _ in reads_of(Twice())]
    ['torch']
    """
    held, cls = vars(module), cls or type(module)
    if "forward" in held:
        raise Unclear("its forward is an attribute")
    code = _Code(cls)
    for name in ("__call__", "__getattr__", "__getattribute__"):
        if getattr(cls, name) is not getattr(nn.Module, name):
            raise Unclear(f"its class has its own {name}")
    code.follow(cls.forward)
    for name in sorted((code.names & held.keys()) - OWN):
        if not _tested(held[name]):
            raise Unclear(f"its code reads the attribute {name}, a {type(held[name]).__name__}")
    return code.held


class _Code:
    """The code of a module: that of its class, and of functions that it calls.

    Attributes
    ----------
    held : list of Held
        The names that it reads outside of the module.
    names : set of str
        The names of attributes that it reads of any object.
    """

    def __init__(self, cls: type[nn.Module]) -> None:
        self.held: list[Held] = []
        self.names: set[str] = set()
        self._classes = [c for c in cls.__mro__ if c is not object and not c.__module__.startswith("torch.")]
        self._seen: set[Any] = set()

    def follow(self, function: Any) -> None:
        """Read the code of a function, and of those that it calls."""
        function = getattr(function, "__func__", function)
        if function.__module__ == "torch.random":
            raise Unclear(f"its code calls {function.__name__}")
        if function in self._seen:
            return
        self._seen.add(function)
        if not isinstance(function, types.FunctionType):
            raise Unclear(f"its code calls {function!r}")
        if function.__module__.startswith("torch."):
            return
        code = function.__code__
        if code.co_flags & 0x2A0:  # a generator or a coroutine, which isn't a function's call
            raise Unclear(f"{code.co_name} is not a plain function")
        if set(code.co_freevars) - {"__class__"}:
            raise Unclear(f"{code.co_name} reads the variable {code.co_freevars[0]} of another function")
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if not all(map(_fixed, defaults)):
            raise Unclear(f"{code.co_name} has a default that may change")
        for step in _instructions(code):
            self._step(function, step)

    def _step(self, function: types.FunctionType, step: dis.Instruction) -> None:
        """Read one instruction."""
        if step.opname in REFUSED:
            raise Unclear(f"{function.__name__} does more than compute: {step.opname} {step.argval or ''}")
        if step.opname == "LOAD_GLOBAL":
            self._name(function, step.argval)
        elif step.opname in {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}:
            self._attribute(step.argval)

    def _name(self, function: types.FunctionType, name: str) -> None:
        """Read a name of the function's file, or of Python."""
        where = function.__globals__
        if name not in where:
            if name not in BUILTINS or not hasattr(builtins, name):
                raise Unclear(f"{function.__name__} reads {name}")
            return
        value = where[name]
        self.held.append((where, name, value))
        if isinstance(value, types.FunctionType):
            self.follow(value)
        elif not _fixed(value):
            raise Unclear(f"{function.__name__} reads {name}, a {type(value).__name__}")

    def _attribute(self, name: str) -> None:
        """Read an attribute of an object that may be the module."""
        if name in {"__dict__", "__class__", "__globals__"} or name in STATES:
            raise Unclear(f"its code reads {name}")
        self.names.add(name)
        for cls in self._classes:
            if name not in vars(cls):
                continue
            value = vars(cls)[name]
            if not isinstance(value, types.FunctionType | staticmethod | classmethod):
                raise Unclear(f"its code reads {name} of its class, a {type(value).__name__}")
            self.follow(value)
            break


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function, and of comprehensions and functions within it."""
    yield from dis.get_instructions(code)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _instructions(inner)


def _of_torch(value: Any) -> bool:
    """Return whether a value is a part of torch or of Python's mathematics: a package, function or type."""
    if isinstance(value, types.ModuleType):
        return value is math or (value.__name__ + ".").startswith("torch.")
    if isinstance(value, nn.Module) or not callable(value):
        return False
    return (str(getattr(value, "__module__", "")) + ".").startswith(("torch.", "math."))


def _fixed(value: Any) -> bool:
    """Return whether a value never changes."""
    if type(value) in (tuple, torch.Size):
        return all(map(_fixed, value))
    return type(value) in (*CONSTANTS, float) or _of_torch(value) or _named(value)


def _named(value: Any) -> bool:
    """Return whether a value is a type of named tuples, which a result may be."""
    return isinstance(value, type) and value.__bases__ == (tuple,) and hasattr(value, "_fields")


def _tested(value: Any) -> bool:
    """Return whether ``Inside`` notices if an attribute with this value changes."""
    values = value.values() if type(value) is dict else value if type(value) in (list, tuple) else [value]
    return all(isinstance(v, Tensor) or _fixed(v) for v in values)
