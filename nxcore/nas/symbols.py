"""Symbols: a module's own code run on arguments without values, which remember what is computed of them.

Code that needs more of a symbol than the functions of this file know depends on values or shapes, or computes
something else: then nothing is known of it. A watch covers what it reads besides (``nxcore.nas.watch``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nxcore.nas.reading import Unclear

if TYPE_CHECKING:
    from nxcore.nas.run import Run

Form = Any
"""The formula of a symbol: a tuple of what computes it and of other forms.

``("x",)``, ``("weight", i)``, ``("call", place, form)``, ``("mul", form, form)``, ``("add", form, form)``,
``("item", form, key)``, ``("cat", forms, dim)``, ``("stack", forms)`` and ``("zeros",)``. A place is the
names of a module in the one whose code runs.
"""


class Symbol:
    """A tensor without a value.

    Parameters
    ----------
    run : Run
        The run of the code that it is used in.
    form : tuple
        What it stands for.
    """

    __slots__ = ("form", "run")

    def __init__(self, run: Run, form: Form) -> None:
        self.run, self.form = run, form

    @property  # type: ignore[misc]  # object's can be set
    def __class__(self) -> Any:
        """The class that code may read."""
        return Tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what a function of torch returns."""
        run = _run_of((args, kwargs))
        known = KNOWN.get(func)
        if known is None:
            raise run.refuses(f"it calls {getattr(func, '__name__', func)}")
        return known(run, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        known = OF_TENSORS.get(name)
        if known is None:
            raise self.run.refuses(f"it reads {name} of a tensor")
        return lambda *args, **kwargs: known(self.run, self, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in Symbol.__slots__:
            raise self.run.refuses(f"it sets {name} of a tensor")
        object.__setattr__(self, name, value)

    def __add__(self, other: Any) -> Any:
        return _add(self.run, self, other)

    def __radd__(self, other: Any) -> Any:
        return _add(self.run, other, self)

    def __iadd__(self, other: Any) -> Any:
        return _grow(self.run, self, other)

    def __mul__(self, other: Any) -> Any:
        return _mul(self.run, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _mul(self.run, other, self)

    def __getitem__(self, key: Any) -> Any:
        return self.run.made(("item", self.form, _key(self.run, key)))

    def __iter__(self) -> Iterator[Any]:
        raise self.run.refuses("it unpacks a tensor")

    def __hash__(self) -> int:
        raise self.run.refuses("it compares a tensor")


def _refused(name: str) -> Any:
    def method(self: Symbol, *_: Any) -> Any:
        raise self.run.refuses(f"it calls {name} of a tensor")

    return method


for _name in (
    *(
        "bool",
        "float",
        "int",
        "index",
        "complex",
        "contains",
        "len",
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
        "ne",
        "neg",
    ),
    *(
        "abs",
        "pos",
        "invert",
        "sub",
        "rsub",
        "isub",
        "truediv",
        "rtruediv",
        "itruediv",
        "floordiv",
        "mod",
        "imul",
    ),
    *("pow", "rpow", "ipow", "matmul", "rmatmul", "and", "or", "xor", "setitem", "delitem", "enter", "array"),
):
    setattr(Symbol, f"__{_name}__", _refused(f"__{_name}__"))


class Vector(Symbol):
    """A tensor of one dimension whose elements are known by number.

    Parameters
    ----------
    run : Run
    forms : sequence of tuple
        The element's.
    """

    __slots__ = ("forms",)

    def __init__(self, run: Run, forms: Sequence[Form]) -> None:
        super().__init__(run, ("vector", *forms))
        object.__setattr__(self, "forms", forms)

    def __iter__(self) -> Iterator[Any]:
        return iter([self.run.made(form) for form in self.forms])

    def __len__(self) -> int:
        return len(self.forms)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is slice:
            return Vector(self.run, self.forms[key])
        if type(key) is not int:
            raise self.run.refuses("it selects weights by more than a number")
        return self.run.made(self.forms[key])


def _run_of(args: Any) -> Run:
    left = [args]
    while left:
        one = left.pop()
        if type(one) in (Symbol, Vector):
            return one.run  # type: ignore[no-any-return]  # it is a symbol
        left += one.values() if type(one) is dict else one if type(one) in (list, tuple) else ()
    raise Unclear("it calls a function of torch with a symbol inside of what it holds")


def _number(x: Any, value: float) -> bool:
    return type(x) in (int, float) and x == value


def _form(run: Run, x: Any) -> Form:
    if type(x) is not Symbol or x.run is not run:
        raise run.refuses(f"it computes with a {type(x).__name__}")
    return x.form


def _add(run: Run, a: Any, b: Any) -> Any:
    if _number(a, 0):
        return run.made(_form(run, b))
    if _number(b, 0):
        return run.made(_form(run, a))
    return run.made(("add", _form(run, a), _form(run, b)))


def _grow(run: Run, a: Any, b: Any) -> Any:
    form = _form(run, a)
    if form[0] not in {"mul", "add"}:
        raise run.refuses("it writes into a tensor")
    a.form = form if _number(b, 0) else ("add", form, _form(run, b))
    return a


def _mul(run: Run, a: Any, b: Any) -> Any:
    for one, other in ((a, b), (b, a)):
        if _number(one, 1):
            return run.made(_form(run, other))
        if _number(one, 0):
            _form(run, other)
            return run.made(("zeros",))
    return run.made(("mul", _form(run, a), _form(run, b)))


def _key(run: Run, key: Any) -> Any:
    parts = key if type(key) is tuple else (key,)
    found = []
    for part in parts:
        if type(part) is slice and all(
            type(v) in (int, type(None)) for v in (part.start, part.stop, part.step)
        ):
            found.append(("slice", part.start, part.stop, part.step))
        else:
            raise run.refuses("it selects a part of a tensor by more than slices of numbers")
    return tuple(found)


def _forms(run: Run, tensors: Any) -> tuple[Form, ...]:
    if type(tensors) not in (list, tuple):
        raise run.refuses("it joins what isn't a list")
    return tuple(_form(run, t) for t in tensors)


def _cat(run: Run, tensors: Any, dim: Any = 0) -> Any:
    return run.made(("cat", _forms(run, tensors), dim))


def _stack(run: Run, tensors: Any, dim: Any = 0) -> Any:
    if not _number(dim, 0):
        raise run.refuses("it stacks along another dimension than the first")
    return run.made(("stack", _forms(run, tensors)))


def _sum(run: Run, x: Any, dim: Any = None) -> Any:
    form = _form(run, x)
    if form[0] != "stack" or type(dim) is not int or dim != 0:
        raise run.refuses("it sums over more than a stack's first dimension")
    total = form[1][0]
    for other in form[1][1:]:
        total = "add", total, other
    return run.made(total)


def _unbind(run: Run, x: Any, dim: Any = 0) -> Any:
    if type(x) is not Vector or not _number(dim, 0):
        raise run.refuses("it unbinds another tensor than the weights")
    return tuple(x)


def _size(run: Run, x: Any, dim: Any = None) -> Any:
    if type(x) is not Vector or dim not in (0, None):
        raise run.refuses("it reads the size of a tensor")
    return torch.Size([len(x)]) if dim is None else len(x)


KNOWN: dict[Any, Any] = {
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), _add),
    **dict.fromkeys((torch.mul, torch.multiply, Tensor.mul, Tensor.multiply), _mul),
    torch.cat: _cat,
    torch.concat: _cat,
    torch.stack: _stack,
    torch.sum: _sum,
    torch.unbind: _unbind,
}
"""Functions of torch -> what they return for symbols."""

OF_TENSORS: dict[str, Any] = {
    "add": _add,
    "add_": _grow,
    "mul": _mul,
    "multiply": _mul,
    "unbind": _unbind,
    "sum": _sum,
    "size": _size,
}
"""Methods of tensors -> what they return for symbols."""
