"""Expressions as programs and plugins write them: functions, and texts."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from typing import Any

from nxcore.errors import InvalidInputError
from nxcore.expression.grammar import parsed
from nxcore.expression.operator import specs
from nxcore.expression.symbol import traced
from nxcore.expression.tree import Expression
from nxcore.spec.spec import OpSpec


def expression_of(given: Any, numbers: Mapping[str, float]) -> Expression:
    """Return the expression of a function, which is called once with symbols, or of a text.

    Raises
    ------
    ExpressionError
        If it is no expression; of a text, the message points at the place.
    InvalidInputError
        If it is neither, or a number is none.
    """
    if isinstance(given, str):
        return parsed(given, _defaults(numbers))
    if not callable(given):
        what = type(given).__name__
        raise InvalidInputError(f"expression must be a function or a text, got {what}", argument="expression")
    if numbers:
        names = ", ".join(numbers)
        raise InvalidInputError(f"a function's numbers are its parameters with defaults, got {names}")
    return traced(given)


def require_name(name: Any) -> None:
    """Raise ``InvalidInputError`` where an operator can't have a name."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidInputError(f"name must be an identifier, got {name!r}", argument="name")


def pointwise_ops(
    name: str, expression: Callable[..., Any] | str, *, doc: str = "", **numbers: float
) -> tuple[OpSpec, ...]:
    """Return the operators of a pointwise expression, as a plugin's hook ``nxcore_ops`` returns them.

    Every backend with a printer has kernels for them, as for the operators that ``nxcore.pointwise`` makes.

    Parameters
    ----------
    name : str
        The operator's name.
    expression : callable or str
        As ``nxcore.pointwise`` takes it.
    doc : str
        The operator's docstring; by default the function's, or one that is made of the tree.
    **numbers : float
        The names and defaults of a text's numbers.

    Returns
    -------
    tuple of OpSpec
        The operator and, where it has a gradient, its backward operator.

    Raises
    ------
    ExpressionError
        If it is no expression; of a text, the message points at the place.
    InvalidInputError
        If the name is no identifier.

    Examples
    --------
    >>> [spec.name for spec in pointwise_ops("leaky_gate", "where(x > 0, x, slope * x) * y", slope=0.1)]
    ['leaky_gate', 'leaky_gate_backward']
    """
    require_name(name)
    found = expression_of(expression, numbers)
    return specs(found, name, doc or (not isinstance(expression, str) and expression.__doc__) or "")


def _defaults(numbers: Mapping[str, Any]) -> dict[str, int | float]:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            what = type(value).__name__
            raise InvalidInputError(f"the default of {name} must be a number, got {what}", argument=name)
    return dict(numbers)
