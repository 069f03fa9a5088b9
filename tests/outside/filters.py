"""Right calls of conv2d, drawn by hypothesis; entered among those of ``strategies``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from nxcore.ops.conv2d import out_shape
from tests.outside.strategies import ORDINARY, STRATEGIES, Draw, strategy, tensor


@strategy
def conv2d(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any window of ``depthwise_conv2d``'s, any groups, few filters; weights as there."""
    x, weight, *where = draw(STRATEGIES["depthwise_conv2d"](most))
    channels = x.shape[-3]
    groups = draw(st.sampled_from([n for n in (1, 1, 2, channels) if channels % n == 0]))
    made = groups * draw(st.sampled_from([1, 2, 3, 5, 8, 9, 17]))
    shape = (made, channels // groups, *weight.shape[2:])
    weight = tensor(draw, shape, x.dtype, ("normal", "equal"))
    bias = tensor(draw, (made,), x.dtype, ("normal", "equal")) if draw(st.booleans()) else None
    return x, weight, bias, *where, groups


@strategy
def conv2d_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, of ordinary numbers as ``depthwise_conv2d_backward``'s."""
    x, weight, _, *rest = draw(conv2d(most))
    x = tensor(draw, tuple(x.shape), x.dtype, ORDINARY)
    grad = tensor(draw, out_shape(x, weight, None, *rest), x.dtype, ORDINARY)
    mask = draw(
        st.sampled_from([(True,) * 3, (True, False, False), (False, True, False), (False, False, True)])
    )
    return grad, x, weight, *rest, mask
