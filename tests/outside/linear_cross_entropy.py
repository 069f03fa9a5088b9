"""Strategies: valid calls of linear_cross_entropy."""

from typing import Any

import torch
from hypothesis import strategies as st

from tests.outside.strategies import Draw, dtypes, strategy, tensor


@strategy
def linear_cross_entropy(draw: Draw, most: int) -> tuple[Any, ...]:
    """Rows and classes of any layout, some rows ignored."""
    rows, features, classes = (draw(st.integers(1, 9)) for _ in range(3))
    dtype, reduction = draw(dtypes()), draw(st.sampled_from(["none", "mean", "sum"]))
    x, w = (tensor(draw, (n, features), dtype, ("normal", "equal")) for n in (rows, classes))
    target = torch.tensor([draw(st.integers(0, classes - 1)) for _ in range(rows)])
    bias = draw(st.none() | st.just(torch.linspace(-1, 1, classes).to(dtype)))
    return (
        x,
        w,
        target,
        bias,
        None,
        reduction,
        draw(st.sampled_from([None, 1])),
        draw(st.sampled_from([0.0, 0.1])),
    )
