"""Reading: what code reads besides its arguments, and what it may change that outlives a call.

Values that are constants, or hold constants, can be watched. Others can't: a program may change them unseen.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import math
import operator
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.graphs.structure import CONSTANTS
from nxcore.nas.watch import MISSING, Watch

MOST = 64
"""The most values of a list or dictionary that is compared at each call."""

FUNCTIONS: frozenset[Any] = frozenset(
    {
        *(abs, all, any, divmod, getattr, hasattr, isinstance, iter, len, max, min, next, round, sorted, sum),
        *(bool, dict, enumerate, float, int, list, map, range, reversed, set, slice, str, tuple, zip, super),
        *(functools.reduce, operator.add, operator.mul, operator.iadd, operator.getitem),
        *(v for v in vars(math).values() if isinstance(v, types.BuiltinFunctionType)),
    }
)
"""Functions and types of Python whose results depend on their arguments alone."""

METHODS = frozenset({"get", "items", "keys", "values"})
"""Methods that read a dictionary."""

STORES = {
    *("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_SUBSCR", "DELETE_SUBSCR"),
    *("STORE_SLICE", "IMPORT_NAME", "IMPORT_FROM", "LOAD_BUILD_CLASS"),
}
"""Instructions that may change what outlives a call, or whose values come from elsewhere."""

NAMES = {"LOAD_GLOBAL", "LOAD_NAME"}
CELLS = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
OF_OBJECTS = {*ATTRIBUTES, "LOAD_SUPER_ATTR"}


class Unclear(Exception):  # noqa: N818  not an error: the reason why a module stays what it was
    """Code that reads or does what can't be watched."""


class Attribute:
    """An object's attributes, as a dictionary's names."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def get(self, name: str, default: Any) -> Any:
        """Return the attribute of that name."""
        return getattr(self.owner, name, default)


class Itself:
    """A value that has no name, as that of any name."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self, _name: str, _default: Any) -> Any:
        """Return the value."""
        return self.value


class Cell:
    """A variable of an enclosing function, as a dictionary's name."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def get(self, _name: str, default: Any) -> Any:
        """Return the variable's value."""
        try:
            return self.cell.cell_contents
        except ValueError:
            return default


class Reads:
    """The names that functions read, gathered as the functions run.

    Parameters
    ----------
    lenient : bool
        Whether what can't be watched is noted, in place of raised.

    Attributes
    ----------
    held : list of tuple
        As of ``Watch``, where the owner of a module's attribute is its place: the names that lead to it.
    functions : dict
        Code -> the function that has it, of those that are known by name.
    unclear, effects : list of str
        What can't be watched: what is read, and what may outlive a call.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self.lenient = lenient
        self.unclear: list[str] = []
        self.effects: list[str] = []
        self.held: list[tuple[Any, str, Any]] = []
        self.functions: dict[types.CodeType, types.FunctionType] = {}
        self._inner: set[types.CodeType] = set()
        self._attributes: dict[int, Attribute] = {}
        self._spaces: dict[type, Any] = {}  # what vars() returns is another object each time
        self._read: set[Any] = set()
        self._named: set[Any] = set()

    def add(self, other: Reads) -> None:
        """Add what was read in another run."""
        self.held += other.held

    def watch(self, module: nn.Module) -> Watch:
        """Return a watch over what the code of ``module`` reads."""
        held = []
        for owner, name, value in self.held:
            if type(owner) is tuple:
                own = module.get_submodule(".".join(owner))
                held.append((own, name, vars(own).get(name, MISSING)))
            else:
                held.append((owner, name, value))
        return Watch(held)

    def method(self, cls: type, name: str) -> types.FunctionType:
        """Return a method of a class, and note that its code may run.

        Raises
        ------
        Unclear
            If it isn't a function.
        """
        self.classes(cls, [name])
        found = next(vars(owner)[name] for owner in cls.__mro__ if name in vars(owner))
        if not isinstance(found, types.FunctionType):
            raise Unclear(f"its {name} is a {type(found).__name__}")
        self.functions.setdefault(found.__code__, found)
        return found

    def runs(self, code: types.CodeType, cls: type | None = None) -> None:
        """Note that a function runs, for a module of a class: read its code once.

        Raises
        ------
        Unclear
            If the function isn't known by name, or its code reads or does what can't be watched.
        """
        if cls is not None and (code, cls) not in self._named:
            self._named.add((code, cls))
            self.classes(cls, names_of(code))
        if code in self._inner or code in self._read:
            return
        function = self.functions.get(code)
        if function is None:
            self._refuse(f"it calls {code.co_name}, which isn't known by name", effect=True)
            return
        self._read.add(code)
        self.held.append((self._of(function), "__code__", code))
        for name in ("__defaults__", "__kwdefaults__"):
            if (value := getattr(function, name)) is not None:
                self.held.append((self._of(function), name, value))
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            name = f"a default of {code.co_name}"
            self.value(default, name)
            self.held.append((Itself(default), name, default))
        for own in _codes(code):
            if own is not code:
                self._inner.add(own)
            self._walk(function, own)

    def ran(self, code: types.CodeType) -> bool:
        """Return whether a function is known to have run, or one within it."""
        return code in self._read or code in self._inner

    def classes(self, cls: type, names: Sequence[str]) -> None:
        """Note the attributes of a module's classes that its code may read."""
        for owner in cls.__mro__:
            if owner is object or owner.__module__.startswith("torch."):
                continue
            for name in names:
                if name.startswith("__") and name.endswith("__"):
                    continue
                value = vars(owner).get(name, MISSING)
                self.held.append((self._spaces.setdefault(owner, vars(owner)), name, value))
                if value is not MISSING:
                    self.value(value, name)

    def value(self, value: Any, name: str) -> None:
        """Raise unless a value can be watched; note the functions that it holds."""
        if isinstance(value, property):
            for part in (value.fget, value.fset):
                if part is not None:
                    self.value(part, name)
        elif isinstance(value, staticmethod | classmethod):
            self.value(value.__func__, name)
        elif isinstance(value, types.FunctionType):
            self.functions.setdefault(value.__code__, value)
        elif not _plain(value):
            self._refuse(f"it reads {name}, a {type(value).__name__}")

    def _walk(self, function: types.FunctionType, code: types.CodeType) -> None:
        steps = [s for s in dis.get_instructions(code) if s.opname not in {"CACHE", "PUSH_NULL", "NOP"}]
        for at, step in enumerate(steps):
            if step.opname in STORES:
                what = f"{step.opname} {step.argval or ''}".rstrip()
                self._refuse(f"{code.co_name} does more than compute: {what}", effect=True)
            if step.opname in NAMES:
                self._name(function, step.argval, steps[at + 1 :])
            elif step.argval in function.__code__.co_freevars:
                if step.opname == "STORE_DEREF":
                    self._refuse(f"{code.co_name} sets {step.argval} of another function", effect=True)
                if step.opname in CELLS and step.argval != "__class__":
                    place = function.__code__.co_freevars.index(step.argval)
                    cell = (function.__closure__ or ())[place]
                    owner = Cell(cell)
                    self._chain(owner, step.argval, owner.get("", MISSING), steps[at + 1 :])

    def _name(self, function: types.FunctionType, name: str, rest: Sequence[dis.Instruction]) -> None:
        where = function.__globals__
        if name in where:
            self._chain(where, name, where[name], rest)
            return
        self.held.append((where, name, MISSING))
        value = getattr(builtins, name, MISSING)
        if value in FUNCTIONS or (isinstance(value, type) and issubclass(value, BaseException)):
            return
        self._refuse(f"it reads {name}")

    def _chain(self, owner: Any, name: str, value: Any, rest: Sequence[dis.Instruction]) -> None:
        """Note a name, and the attributes of its value that the code reads next."""
        self.held.append((owner, name, value))
        for step in rest:
            if step.opname not in ATTRIBUTES or _constant(value):
                break
            if type(value) in (dict, list, set):
                if step.argval not in METHODS:
                    self._refuse(f"it calls {step.argval} of {name}, a {type(value).__name__}", effect=True)
                break
            before, name = value, step.argval
            value = self._attribute(before, name)
            if value is MISSING:
                return
            self.held.append((self._of(before), name, value))
        self.value(value, name)

    def _attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute of a value: of a file, of a class, or of an object that only holds it."""
        kind: Any = type(owner)
        if isinstance(owner, types.ModuleType | type):
            if name not in {"__dict__", "__class__"} and hasattr(owner, name):
                return getattr(owner, name)
        elif kind.__getattribute__ is object.__getattribute__ and name in getattr(owner, "__dict__", ()):
            return vars(owner)[name]
        self._refuse(f"it reads {name} of a {type(owner).__name__}")
        return MISSING

    def _refuse(self, why: str, *, effect: bool = False) -> None:
        """Note what can't be watched, or raise it."""
        if not self.lenient:
            raise Unclear(why)
        (self.effects if effect else self.unclear).append(why)

    def _of(self, owner: Any) -> Attribute:
        """Return the attributes of an object, always as the same owner."""
        return self._attributes.setdefault(id(owner), Attribute(owner))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of comprehensions and functions within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def names_of(code: types.CodeType) -> list[str]:
    """Return the names of attributes that a function's code reads, of whatever."""
    return sorted(
        {s.argval for own in _codes(code) for s in dis.get_instructions(own) if s.opname in OF_OBJECTS}
    )


def _plain(value: Any) -> bool:
    """Return whether a value is a constant, holds constants alone, or computes from its arguments alone."""
    kind = type(value)
    if kind in (tuple, torch.Size, frozenset):
        return all(_constant(item) or _function(item) for item in value)
    if kind in (list, set, dict):
        items = [*value.keys(), *value.values()] if kind is dict else [*value]
        return len(items) <= MOST and all(_constant(item) for item in items)
    return _constant(value) or _function(value)


def _constant(value: Any) -> bool:
    kind = type(value)
    if kind is tuple:
        return all(map(_constant, value))
    return kind in CONSTANTS or kind in (float, complex) or isinstance(value, enum.Enum)


def _function(value: Any) -> bool:
    """Return whether a value is a function or type of torch, or one of Python that computes alone."""
    try:
        if value in FUNCTIONS:
            return True
    except TypeError:  # it has no hash
        return False
    if isinstance(value, type) and issubclass(value, nn.Module | BaseException):
        return True
    return callable(value) and not isinstance(value, nn.Module | Tensor) and _of_torch(value)


def _of_torch(value: Any) -> bool:
    named = str(getattr(value, "__module__", None) or "") + "."
    return named.startswith(("torch.", "nxcore."))
