"""Strategies: valid calls of rope and of its gradient."""

from typing import Any

import torch
from hypothesis import strategies as st

from tests.outside.strategies import ORDINARY, Draw, dtypes, shapes, strategy, tensor


@strategy
def rope(draw: Draw, most: int) -> tuple[Any, ...]:
    """Rows of any layout, of which a part turns, by angles of any dtype that repeat along any dimensions."""
    rows, pairs = draw(shapes(max(most // 8, 1), 0, 4)), draw(st.integers(1, 9))
    width = 2 * pairs + draw(st.sampled_from([0, 0, 1, 6]))
    x = tensor(draw, (*rows, width), draw(dtypes()), ("normal", "nan", "inf"))
    whole, of = draw(st.booleans()), draw(st.sampled_from([x.dtype, torch.float32]))
    angles = 2 * pairs if whole else pairs
    cos, sin = (tensor(draw, (*_repeated(draw, rows), angles), of, ("normal",)) for _ in range(2))
    given = width == 2 * pairs and whole and draw(st.booleans())
    return x, cos, sin, draw(st.booleans()), None if given else 2 * pairs


def _repeated(draw: Draw, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to rows."""
    shape = tuple(1 if draw(st.booleans()) else n for n in rows)
    return shape[draw(st.integers(0, len(shape))) :]


@strategy
def rope_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients; kernels compute that of the rows."""
    x, *rest = draw(rope(most))
    mask = draw(st.sampled_from([(True, False, False)] * 3 + [(True, True, True), (False, True, False)]))
    return tensor(draw, tuple(x.shape), x.dtype, ORDINARY), x, *rest, mask
