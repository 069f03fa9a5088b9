"""Strategies of the norms: they enter themselves with the others."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from nxcore.ops.batch_norm import SPEC as BATCH_NORM
from tests.outside.strategies import LAYOUTS, Draw, dtypes, shapes, strategy, tensor

APART = tuple(layout for layout in LAYOUTS if layout != "expanded")


@strategy
def batch_norm(draw: Draw, most: int) -> tuple[Any, ...]:
    """Images of any layout with a deviation: how a kernel errs where all are equal is a matter of luck."""
    size, dtype = [n or 1 for n in draw(shapes(most // 2, 2, 4))], draw(dtypes())
    size[0] = max(size[0], 2)  # more than one value a channel
    x = tensor(draw, tuple(size), dtype, ("normal", "nan"), APART)
    if draw(st.booleans()):
        return x, None, None, draw(st.sampled_from([1e-5, 0.5]))
    of = draw(st.sampled_from([dtype, torch.float32]))
    factors = (tensor(draw, (size[1],), of, ("normal",)) for _ in range(2))
    return x, *factors, draw(st.sampled_from([1e-5, 0.5]))


@strategy
def batch_norm_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, with the statistics of the images."""
    x, weight, _, eps = draw(batch_norm(most))
    _, mean, var = BATCH_NORM.reference(x, eps=eps)
    mask = draw(st.tuples(*[st.booleans()] * 3).filter(any))
    mask = (mask[0] or weight is None, *mask[1:])
    return tensor(draw, tuple(x.shape), x.dtype, ("normal",)), x, mean, var, weight, eps, mask
