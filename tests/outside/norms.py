"""Strategies of the norms: they enter themselves with the others."""

from typing import Any

import torch
from hypothesis import strategies as st

from nxcore.ops.batch_norm import SPEC as BATCH_NORM
from nxcore.ops.batch_norm_sum import SPEC as SUM
from nxcore.ops.foreach_sep_conv2d_batch_norm import SPEC as FOREACH
from nxcore.ops.sep_conv2d_batch_norm import SPEC as BLOCK
from tests.outside.strategies import LAYOUTS, ORDINARY, Draw, dtypes, shapes, strategy, tensor

APART = tuple(layout for layout in LAYOUTS if layout != "expanded")


@strategy
def batch_norm(draw: Draw, most: int) -> tuple[Any, ...]:
    """Images of any layout with a deviation: how a kernel errs where all are equal is a matter of luck."""
    low = draw(st.sampled_from([2, 3, 4]))  # kernels take few of two dimensions
    size, dtype = [n or 1 for n in draw(shapes(most // 2, low, 4))], draw(dtypes())
    size[0] = max(size[0], 2)  # more than one value a channel
    x = tensor(draw, tuple(size), dtype, ("normal", "nan"), APART)
    if draw(st.booleans()):
        return x, None, None, draw(st.sampled_from([1e-5, 0.5]))
    of = draw(st.sampled_from([dtype, torch.float32]))
    factors = (tensor(draw, (size[1],), of, ("normal",)) for _ in range(2))
    return x, *factors, draw(st.sampled_from([1e-5, 0.5]))


@strategy
def batch_norm_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, with the statistics of the images; a gradient that lies as they do, as a rule."""
    x, weight, _, eps = draw(batch_norm(most))
    _, mean, var = BATCH_NORM.reference(x, eps=eps)
    mask = draw(st.tuples(*[st.booleans()] * 3).filter(any))
    mask = (mask[0] or weight is None, *mask[1:])
    grad = tensor(draw, tuple(x.shape), x.dtype, ("normal",))
    if draw(st.sampled_from([True, True, False])):
        grad = torch.empty_like(x).copy_(grad)
    return grad, x, mean, var, weight, eps, mask


def _axis(draw: Draw, most: int, values: tuple[str, ...]) -> tuple[Any, int]:
    """Draw a tensor and one of its axes."""
    x = tensor(draw, draw(shapes(most, 1, 4)), draw(dtypes()), values)
    return x, draw(st.integers(-x.ndim, x.ndim - 1))


@strategy
def softmax(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any axis of any layout; a wide result of half types too."""
    x, dim = _axis(draw, most, ("normal", "equal", "large", "nan", "inf"))
    return x, dim, draw(st.sampled_from([None, x.dtype, torch.float32]))


@strategy
def softmax_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A result and a gradient of any layouts."""
    x, dim = _axis(draw, most, ("normal", "nan"))
    y = torch.softmax(x, dim)
    return tensor(draw, tuple(x.shape), y.dtype, ORDINARY), y, dim, draw(st.sampled_from([None, x.dtype]))


@strategy
def log_softmax(draw: Draw, most: int) -> tuple[Any, ...]:
    """As softmax."""
    return draw(softmax(most))


@strategy
def log_softmax_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A result and a gradient of any layouts."""
    x, dim = _axis(draw, most, ("normal", "nan"))
    y = torch.log_softmax(x, dim)
    return tensor(draw, tuple(x.shape), y.dtype, ORDINARY), y, dim, draw(st.sampled_from([None, x.dtype]))


@strategy
def rms_norm(draw: Draw, most: int) -> tuple[Any, ...]:
    """Rows of any layout, with a weight of any dtype or without."""
    x = tensor(draw, draw(shapes(most, 1, 4)), draw(dtypes()), ("normal", "nan"))
    size = tuple(x.shape[-draw(st.integers(1, x.ndim)) :])
    weight = tensor(draw, size, draw(dtypes()), ("normal",)) if draw(st.booleans()) else None
    return x, size, weight, draw(st.sampled_from([1e-6, 0.5]))


@strategy
def rms_norm_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients."""
    x, size, weight, eps = draw(rms_norm(most))
    mask = draw(st.tuples(st.booleans(), st.booleans()).filter(any))
    mask = (mask[0] or weight is None, mask[1])
    return tensor(draw, tuple(x.shape), x.dtype, ("normal",)), x, size, weight, eps, mask


@strategy
def layer_norm(draw: Draw, most: int) -> tuple[Any, ...]:
    """Rows of any layout with a deviation, with factors of any dtype, one of them, or none."""
    x = tensor(draw, draw(shapes(most, 1, 4)), draw(dtypes()), ("normal", "nan"), APART)
    size, of = tuple(x.shape[-draw(st.integers(1, x.ndim)) :]), draw(dtypes())
    factors = [tensor(draw, size, of, ("normal",)) if draw(st.booleans()) else None for _ in range(2)]
    return x, size, *factors, draw(st.sampled_from([1e-5, 0.5]))


@strategy
def layer_norm_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients."""
    x, size, weight, bias, eps = draw(layer_norm(most))
    mask = draw(st.tuples(*[st.booleans()] * 3))
    found = any(flag and t is not None for flag, t in zip(mask[1:], (weight, bias), strict=True))
    mask = (mask[0] or not found, *mask[1:])
    return tensor(draw, tuple(x.shape), x.dtype, ("normal",)), x, size, weight, bias, eps, mask


@strategy
def group_norm(draw: Draw, most: int) -> tuple[Any, ...]:
    """Groups of channels with a deviation, with factors of any dtype, one of them, or none."""
    size, of = draw(shapes(most, 2, 4)), draw(dtypes())
    groups = draw(st.sampled_from([g for g in range(1, size[1] + 1) if size[1] % g == 0] or [1]))
    x = tensor(draw, (size[0] + 2, *size[1:]), draw(dtypes()), ("normal", "nan"), APART)
    factors = [tensor(draw, (size[1],), of, ("normal",)) if draw(st.booleans()) else None for _ in range(2)]
    return x, groups, *factors, draw(st.sampled_from([1e-5, 0.5]))


@strategy
def group_norm_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients."""
    x, groups, weight, bias, eps = draw(group_norm(most))
    mask = draw(st.tuples(*[st.booleans()] * 3))
    found = any(flag and t is not None for flag, t in zip(mask[1:], (weight, bias), strict=True))
    mask = (mask[0] or not found, *mask[1:])
    return tensor(draw, tuple(x.shape), x.dtype, ("normal",)), x, groups, weight, bias, eps, mask


@strategy
def batch_norm_sum(draw: Draw, most: int) -> tuple[Any, ...]:
    """Images of one layout or of several, some of them normalised; weights of any sign."""
    count = draw(st.sampled_from([1, 2, 3, 5, 8]))
    size, dtype = [n or 1 for n in draw(shapes(most // (2 * count), 2, 4))], draw(dtypes())
    size[0] = max(size[0], 2)  # more than one value a channel
    layouts = draw(st.sampled_from([APART, *((layout,) for layout in APART)]))
    xs = tuple(tensor(draw, tuple(size), dtype, ("normal", "nan"), layouts) for _ in range(count))
    weights = tensor(draw, (count,), draw(st.sampled_from([dtype, torch.float32])), ("normal",))
    normed = draw(st.one_of(st.none(), st.tuples(*[st.booleans()] * count).filter(any)))
    return xs, weights, normed, draw(st.sampled_from([1e-5, 0.5]))


@strategy
def batch_norm_sum_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, with the statistics of the images."""
    xs, weights, normed, eps = draw(batch_norm_sum(most))
    _, means, variances = SUM.reference(xs, weights, normed, eps)
    mask = draw(st.one_of(st.none(), st.tuples(*[st.booleans()] * (len(xs) + 1)).filter(any)))
    grad = tensor(draw, tuple(xs[0].shape), xs[0].dtype, ("normal",))
    return grad, xs, weights, means, variances, normed, eps, mask


@strategy
def sep_conv2d_batch_norm(draw: Draw, most: int) -> tuple[Any, ...]:
    """Ordinary windows, of ordinary numbers with a deviation, with factors or without.

    Of 16 bits kernels take none.
    """
    images, channels, made = (draw(st.integers(low, 5)) for low in (2, 1, 1))
    size = (images, channels, *(draw(st.integers(3, 9)) for _ in range(2)))
    window = (draw(st.integers(1, 2)), 1, 1, draw(st.booleans()))
    shapes_of = (size, (channels, 1, 3, 3), (made, channels, 1, 1))
    x, filters, points = (tensor(draw, shape, torch.float32, ("normal",), APART) for shape in shapes_of)
    factors: Any = (None, None)
    if draw(st.booleans()):
        factors = (tensor(draw, (points.shape[0],), x.dtype, ("normal",)) for _ in range(2))
    return x, filters, points, *window, *factors, draw(st.sampled_from([1e-5, 0.5]))


@strategy
def sep_conv2d_batch_norm_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, with what the forward pass kept."""
    x, filters, points, *window, weight, bias, eps = draw(sep_conv2d_batch_norm(most))
    out, *kept = BLOCK.reference(x, filters, points, *window, weight, bias, eps)
    mask = draw(st.tuples(*[st.booleans()] * 5).filter(lambda mask: any(mask[:3])))
    grad = tensor(draw, tuple(out.shape), x.dtype, ("normal",), APART)
    return grad, x, filters, points, *kept, weight, *window, eps, mask


@strategy
def foreach_sep_conv2d_batch_norm(draw: Draw, most: int) -> tuple[Any, ...]:
    """Windows of an edge of DARTS, of ordinary numbers with a deviation, some results not normalised.

    Of 16 bits kernels take none.
    """
    count = draw(st.sampled_from([1, 2, 5]))
    images, channels, made = (draw(st.integers(low, 4)) for low in (2, 1, 1))
    stride, relu = draw(st.integers(1, 2)), draw(st.booleans())
    size = (images, channels, *(draw(st.integers(3, 7)) for _ in range(2)))
    found = draw(st.lists(st.sampled_from([(3, 1), (5, 1), (3, 2), (5, 2)]), min_size=count, max_size=count))
    lists = [
        tuple(tensor(draw, shape, torch.float32, ("normal",), APART) for shape in shapes_of)
        for shapes_of in (
            [size] * count,
            [(channels, 1, k, k) for k, _ in found],
            [(made, channels, 1, 1)] * count,
        )
    ]
    windows = (stride,) * count, tuple(d * (k // 2) for k, d in found), tuple(d for _, d in found)
    normed = draw(st.one_of(st.none(), st.tuples(*[st.booleans()] * count)))
    return *lists, *windows, normed, relu, draw(st.sampled_from([1e-5, 0.5]))


@strategy
def foreach_sep_conv2d_batch_norm_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, with what the forward pass kept."""
    given = draw(foreach_sep_conv2d_batch_norm(most))
    lists, windows, rest = given[:3], given[3:6], given[6:]
    outs, ys, *kept = FOREACH.reference(*given)
    mask = draw(st.one_of(st.none(), st.tuples(*[st.booleans()] * (3 * len(outs))).filter(any)))
    grads = tuple(tensor(draw, tuple(out.shape), out.dtype, ("normal",), APART) for out in outs)
    return grads, *lists, ys, *windows, *kept, *rest, mask
