"""Calls of the reductions: of any axes, of one axis, and of indices along it."""

from typing import Any

import torch
from hypothesis import strategies as st

from tests.outside.strategies import ANY, STRATEGIES, Draw, axes, dtypes, shapes, strategy, tensor

STRATEGIES["mean"] = STRATEGIES["sum"]
STRATEGIES["mean_backward"] = STRATEGIES["sum_backward"]


def _full(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without sizes of 0: of nothing there is no largest element."""
    return tuple(n or 1 for n in shape)


@strategy
def any(draw: Draw, most: int) -> tuple[Any, ...]:  # noqa: A001  the operator's name
    """Any axes, one at least, of numbers of which many are 0."""
    x = tensor(draw, draw(shapes(most)), draw(dtypes()), (*ANY, "few"))
    dim = axes(draw, x.ndim)
    return x, None if dim == () else dim, draw(st.booleans())


STRATEGIES["all"] = STRATEGIES["any"]


@strategy
def amax(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any axes that have elements."""
    x = tensor(draw, _full(draw(shapes(most))), draw(dtypes()), (*ANY, "few"))
    return x, axes(draw, x.ndim), draw(st.booleans())


@strategy
def amax_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A gradient of the maxima's shape."""
    x, dim, keepdim = draw(amax(most))
    return (
        tensor(draw, tuple(torch.amax(x, () if dim is None else dim, keepdim).shape), x.dtype),
        x,
        dim,
        keepdim,
    )


@strategy
def max(draw: Draw, most: int) -> tuple[Any, ...]:  # noqa: A001  the operator's name
    """Any axis that has elements."""
    x = tensor(draw, _full(draw(shapes(most))), draw(dtypes()), (*ANY, "few"))
    span = x.ndim or 1
    return x, draw(st.integers(-span, span - 1)), draw(st.booleans())


@strategy
def max_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Indices of some of the elements."""
    x, dim, keepdim = draw(max(most))
    values, indices = torch.max(x, dim, keepdim)
    return tensor(draw, tuple(values.shape), x.dtype), indices, tuple(x.shape), dim, keepdim


@strategy
def argmax(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any axis that has elements, or all elements."""
    x, dim, keepdim = draw(max(most))
    return x, None if draw(st.integers(0, 3)) == 0 else dim, keepdim


for _name in ("amax", "amax_backward", "max", "max_backward", "argmax"):
    STRATEGIES[_name.replace("max", "min")] = STRATEGIES[_name]
