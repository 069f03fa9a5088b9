"""Right calls of scans and scatters, drawn by hypothesis; entered among those of ``strategies``."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from tests.outside.strategies import ORDINARY, Draw, dtypes, shapes, strategy, tensor


def _axis(draw: Draw, most: int) -> tuple[Any, int]:
    """Draw a tensor and one of its axes."""
    x = tensor(draw, draw(shapes(most)), draw(dtypes()), (*ORDINARY, "nan", "inf"))
    span = max(x.ndim, 1)
    return x, draw(st.integers(-span, span - 1))


@strategy
def cumsum(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any axis of any layout; a wide result of half types too."""
    x, dim = _axis(draw, most)
    return x, dim, draw(st.sampled_from([None, x.dtype, torch.float32]))


@strategy
def cumsum_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """As cumsum."""
    return draw(cumsum(most))
