"""Expressions from functions: a function is called once with symbols, and what it does to them is recorded.

Symbols take Python's operators, torch's functions and tensors' methods. A name that the function's module
doesn't define may be a function of expressions.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from nxcore.errors import ExpressionError, nearest
from nxcore.expression import build
from nxcore.expression.tree import Expression, Node

RENAMED = {
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "true_divide": "div",
    "negative": "neg",
    "absolute": "abs",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "not_equal": "ne",
    "logical_and": "and",
    "logical_or": "or",
    "logical_not": "not",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_not": "not",
    "clip": "clamp",
    "power": "pow",
    "fmin": "",
    "fmax": "",
}
"""Torch's and numpy's other names of the same functions; empty for one that is another function."""


class Symbol:
    """A value that isn't known yet: a tensor's element, or a number."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __repr__(self) -> str:
        return f"<symbol {Expression((), (), (self.node,))}>"

    def __bool__(self) -> bool:
        raise ExpressionError(
            "a symbol has no truth value while a function is traced: use where(x > 0, a, b) for `if x > 0`, "
            "(a < x) & (x < b) for `a < x < b`, and minimum or maximum for min or max"
        )

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(getattr(function, "__name__", str(function)), args, kwargs or {})

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise ExpressionError(f"numpy's {function.__name__}.{method} can't be in an expression")
        return _called(function.__name__, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in build.CASTS or name in ("half", "float"):
            dtype = {"half": "float16", "float": "float32"}.get(name, name)
            return lambda: Symbol(build.cast(self.node, dtype))
        _known(name, f"the attribute {name!r} of a tensor can't be in an expression, which knows no shapes")
        return lambda *args, **kwargs: _called(name, (self, *args), kwargs)

    def __pow__(self, exponent: Any) -> Symbol:
        return Symbol(build.power(self.node, _node(exponent)))

    def __rpow__(self, base: Any) -> Symbol:
        return Symbol(build.power(_node(base), self.node))

    def to(self, dtype: Any) -> Symbol:
        """Return the value as another dtype sees it."""
        return Symbol(build.cast(self.node, build.DTYPES.get(dtype, str(dtype))))

    type = to

    def __abs__(self) -> Symbol:
        return _applied("abs", self)

    def __neg__(self) -> Symbol:
        return _applied("neg", self)

    def __pos__(self) -> Symbol:
        return self

    def __invert__(self) -> Symbol:
        return _operated("not", self)

    __hash__ = None  # type: ignore[assignment]  # == gives a symbol


def _operator(name: str, *, swapped: bool = False) -> Callable[[Any, Any], Symbol]:
    def method(self: Any, other: Any) -> Symbol:
        return _operated(name, other, self) if swapped else _operated(name, self, other)

    return method


for _name in ("add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "ne", "and", "or"):
    setattr(Symbol, f"__{_name}__", _operator(_name.replace("true", "")))
for _name in ("add", "sub", "mul", "truediv", "and", "or"):
    setattr(Symbol, f"__r{_name}__", _operator(_name.replace("true", ""), swapped=True))


INSTEAD = {
    "getitem": "an index can't be in an expression: every tensor is taken whole",
    "len": "an expression knows no shapes",
    "iter": "an expression knows no shapes: a tensor can't be taken apart",
    "float": "a symbol is no number while a function is traced: use torch's functions, not those of math",
    "int": "a symbol is no number while a function is traced",
    "matmul": "a product of matrices is no pointwise function",
    "floordiv": "// can't be in an expression; use /",
    "mod": "% can't be in an expression",
    "rmod": "% can't be in an expression",
    "rfloordiv": "// can't be in an expression; use /",
    "rmatmul": "a product of matrices is no pointwise function",
    "xor": "^ can't be in an expression; use (a | b) & ~(a & b) for conditions, ** for powers",
    "index": "a symbol is no number while a function is traced",
    "complex": "an expression has no complex numbers",
}
"""Python's operations on tensors that no expression has, and what to do."""


def _refusing(why: str) -> Callable[..., Any]:
    def method(*_: Any) -> NoReturn:
        raise ExpressionError(why)

    return method


for _name, _why in INSTEAD.items():
    setattr(Symbol, f"__{_name}__", _refusing(_why))


class _OutsideError(ExpressionError):
    """A tensor that is no parameter; ``tensor`` holds it until its name is found."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__("a tensor is used that is no parameter of the function")
        self.tensor = tensor


def _node(value: Any) -> Node:
    if isinstance(value, Symbol):
        return value.node
    if isinstance(value, Tensor):
        raise _OutsideError(value)
    return build.number(value.item() if type(value).__module__ == "numpy" and value.ndim == 0 else value)


def _operated(name: str, *args: Any) -> Symbol:
    return Symbol(build.operated(name, *map(_node, args)))


def _applied(name: str, *args: Any) -> Symbol:
    return Symbol(build.applied(name, list(map(_node, args))))


def _known(name: str, otherwise: str) -> str:
    known = RENAMED.get(name.strip("_") if name.startswith("__") else name, name)
    known = known.removesuffix("_") if known.endswith("_") and not known.startswith("_") else known
    if known in build.NAMES or known in (*build.COMPARED, "and", "or", "not"):
        return known
    raise ExpressionError(f"{otherwise}{build.advice(name)}")


def _called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Symbol:
    """Apply one of torch's functions, by its name and torch's own names of arguments."""
    known = _known(name, f"torch's {name} is no pointwise function of expressions")
    if known == "gelu":
        known = "gelu_tanh" if kwargs.pop("approximate", "none") == "tanh" else "gelu"
    kwargs.pop("inplace", None)
    if known == "clamp":
        named = {"min": "low", "max": "high"}
        return _clamped(*args, **{named.get(name, name): value for name, value in kwargs.items()})
    for own in ("other", "negative_slope", "alpha", "beta", "threshold", "min", "max", "exponent"):
        if own in kwargs and not (own == "alpha" and known in ("add", "sub")):
            args = (*args, kwargs.pop(own))
    if "alpha" in kwargs:
        args = (args[0], _operated("mul", args[1], kwargs.pop("alpha")))
    if kwargs:
        raise ExpressionError(f"{name} takes no argument {min(kwargs)!r} in an expression")
    if known in (*build.COMPARED, "and", "or", "not"):
        return _operated(known, *args)
    return _applied(known, *args)


def _clamped(x: Any, low: Any = None, high: Any = None) -> Symbol:
    if low is not None:
        x = _applied("maximum", x, low)
    return x if high is None else _applied("minimum", x, high)


def _by_name(name: str) -> Callable[..., Symbol]:
    if name in build.CASTS:
        return lambda x: Symbol(build.cast(_node(x), name))
    return lambda *args, **kwargs: _called(name, args, kwargs)


NAMES = {name: _by_name(name) for name in (*build.NAMES, *build.CASTS)}
"""The functions that a traced function finds by name where its module defines no such name."""


def traced(function: Callable[..., Any]) -> Expression:
    """Return the expression of a function of tensors, and of numbers that have defaults.

    Raises
    ------
    ExpressionError
        If it does what no expression can.
    """
    tensors, numbers = _parameters(function)
    symbols = [Symbol(Node("input", (), name)) for name in tensors]
    given = [Symbol(Node("number", (), name, "number")) for name in numbers]
    known = {**NAMES, **getattr(function, "__globals__", {})}
    run = function
    if isinstance(function, types.FunctionType):
        run = types.FunctionType(
            function.__code__, known, function.__name__, function.__defaults__, function.__closure__
        )
        run.__kwdefaults__ = function.__kwdefaults__
    try:
        result = run(*symbols, **dict(zip(numbers, given, strict=True)))
    except _OutsideError as error:
        raise _outside(function, error.tensor) from None
    except NameError as error:
        name = error.name or ""
        raise ExpressionError(f"no function is named {name!r}{nearest(name, build.NAMES)}") from error
    if isinstance(result, Tensor):
        raise _outside(function, result)
    if not isinstance(result, Symbol):
        raise ExpressionError(
            f"the function must return one value of its tensors, got {type(result).__name__}"
        )
    return build.finished(result.node, tensors, tuple(numbers.items()))


def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, int | float]]:
    tensors: list[str] = []
    numbers: dict[str, int | float] = {}
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        name = getattr(function, "__name__", "f")
        why = f"{name} has no signature: give a function of tensors, such as lambda x: {name}(x)"
        raise ExpressionError(why) from None
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ExpressionError(f"a function of *args has no fixed tensors: name the parameter {name!r}")
        build.require_name(name)
        default = parameter.default
        if default is parameter.empty:
            if numbers:
                raise ExpressionError(f"the tensor {name!r} must precede the numbers, which have defaults")
            tensors.append(name)
        elif isinstance(default, bool) or not isinstance(default, int | float):
            raise ExpressionError(f"the default of {name!r} must be a number, got {type(default).__name__}")
        else:
            numbers[name] = default
    return tuple(tensors), numbers


def _outside(function: Callable[..., Any], tensor: Tensor) -> NoReturn:
    """Raise, naming a tensor that the function reads from outside."""
    found = inspect.getclosurevars(function) if isinstance(function, types.FunctionType) else None
    scopes = {**found.globals, **found.nonlocals} if found else {}
    name = next((name for name, value in scopes.items() if value is tensor), "")
    which = f"the tensor {name!r}" if name else f"a tensor of shape {tuple(tensor.shape)}"
    raise ExpressionError(
        f"{which} comes from outside of the function: make it a parameter, "
        f"since an expression holds no tensors"
    )
