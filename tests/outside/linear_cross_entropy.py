"""Strategies: valid calls of linear_cross_entropy, and of cross_entropy and its gradient."""

from typing import Any

import torch
from hypothesis import strategies as st

from nxcore.ops.cross_entropy import axis_of, targets_of
from tests.outside.strategies import ORDINARY, Draw, dtypes, shapes, strategy, tensor


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


@strategy
def cross_entropy(draw: Draw, most: int) -> tuple[Any, ...]:
    """Logits of any layout, some rows ignored; targets with and without gaps."""
    shape = draw(shapes(most, 1, 4).filter(lambda shape: 0 not in shape))
    x = tensor(draw, shape, draw(dtypes()), ("normal", "normal", "equal", "nan", "inf"))
    classes = shape[axis_of(x)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    target = torch.randint(classes, targets_of(x), generator=generator)
    if target.ndim and draw(st.booleans()):
        target = target.mT.contiguous().mT if target.ndim > 1 else target.repeat_interleave(2)[::2]
    weight = draw(st.none() | st.just(torch.linspace(0.5, 2, classes).to(x.dtype)))
    settings = (st.sampled_from([-100, 0, 1]), st.sampled_from(["none", "mean", "sum"]))
    return x, target, weight, *map(draw, settings), draw(st.sampled_from([0.0, 0.1, 1.0]))


@strategy
def cross_entropy_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A gradient of the loss, of any layout."""
    x, target, *settings = draw(cross_entropy(most))
    shape = tuple(target.shape) if settings[2] == "none" else ()
    return tensor(draw, shape, x.dtype, ORDINARY), x, target, *settings, (True, True, True)
