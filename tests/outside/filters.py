"""Right calls of convolutions, drawn by hypothesis; entered among those of ``strategies``."""

from typing import Any

from hypothesis import strategies as st

from nxcore.ops.conv2d import out_shape
from nxcore.ops.pointwise_conv2d import out_shape as out_shape_of_points
from tests.outside.strategies import ORDINARY, STRATEGIES, Draw, dtypes, strategy, tensor


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


@strategy
def pointwise_conv2d(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any stride; shifted filters where the sizes allow that. No NaN or infinity in filters."""
    stride, dtype = draw(st.sampled_from([1, 2, 2, 3])), draw(dtypes())
    side = st.integers(1, 8).map(lambda n: n * max(stride, 2))
    height, width = draw(side), draw(side)
    images = draw(st.integers(1, 3))
    channels = draw(st.integers(1, max(1, min(40, most // (images * height * width)))))
    given = [
        tensor(draw, (draw(st.sampled_from([1, 2, 5, 8, 17])), channels, 1, 1), dtype, ("normal", "equal"))
        for _ in range(1 if stride == 1 else draw(st.integers(1, 2)))
    ]
    x = tensor(draw, (images, channels, height, width), dtype)
    return x, *(*given, None)[:2], stride, draw(st.booleans())


@strategy
def pointwise_conv2d_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, of ordinary numbers."""
    x, *rest = draw(pointwise_conv2d(most))
    x = tensor(draw, tuple(x.shape), x.dtype, ORDINARY)
    grad = tensor(draw, out_shape_of_points(x, *rest), x.dtype, ORDINARY)
    return grad, x, *rest, draw(st.sampled_from([(True,) * 3, (True, False, False), (False, True, True)]))
