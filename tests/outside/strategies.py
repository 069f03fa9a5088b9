"""Right calls of every operator, drawn by hypothesis: one strategy an operator, found by its name."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from nxcore.ops.max_pool2d_with_offsets import SPEC as WITH_OFFSETS
from nxcore.plugin import FLOATS, OpSpec, Window
from nxcore.spec.reduction import canonical_dims
from nxcore.spec.window import memory_format

SIZES = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 61, 63, 64, 65),
    *(127, 128, 129, 251, 255, 256, 257, 1021),
)
"""Primes, and powers of two with their neighbours; 0 is drawn apart, and seldom."""

LARGE = {torch.float32: 2.0**48, torch.bfloat16: 2.0**48, torch.float16: 2.0**10}
"""Far from 1, and no sum of a few thousand products of two overflows the float32 that it is added up in."""

Draw = Callable[[st.SearchStrategy[Any]], Any]
Shape = tuple[int, ...]
STRATEGIES: dict[str, Callable[[int], st.SearchStrategy[tuple[Any, ...]]]] = {}
"""By operator: the most elements of a tensor -> arguments, all positional."""


def strategy(function: Callable[..., tuple[Any, ...]]) -> Callable[[int], st.SearchStrategy[tuple[Any, ...]]]:
    """Enter a composite strategy for the operator of its name."""
    STRATEGIES[function.__name__] = made = st.composite(function)
    return made


def strategy_of(spec: OpSpec) -> Callable[[int], st.SearchStrategy[tuple[Any, ...]]]:
    """Return an operator's strategy; where it has none, tensors of one shape for all its parameters."""

    @st.composite
    def alike(draw: Draw, most: int) -> tuple[Any, ...]:
        shape, dtype = draw(shapes(most, 1)), draw(dtypes())
        return tuple(tensor(draw, shape, dtype) for _ in spec.params)

    return STRATEGIES.get(spec.name, alike)


def shapes(most: int, low: int = 0, high: int = 4) -> st.SearchStrategy[Shape]:
    """Draw shapes of ``low`` to ``high`` dimensions and at most ``most`` elements."""

    @st.composite
    def drawn(draw: Draw) -> Shape:
        left, shape = most, []
        for _ in range(draw(st.integers(low, high))):
            shape.append(draw(st.sampled_from([n for n in SIZES if n <= left])))
            left //= shape[-1]
        shape = draw(st.permutations(shape))
        if shape and draw(st.integers(0, 19)) == 0:
            shape[draw(st.integers(0, len(shape) - 1))] = 0
        return tuple(shape)

    return drawn()


def dtypes() -> st.SearchStrategy[torch.dtype]:
    """Draw a dtype that kernels are written for."""
    return st.sampled_from(FLOATS)


def _numbers(
    draw: Draw, shape: Shape, dtype: torch.dtype, values: tuple[str, ...], repeated: bool = False
) -> Tensor:
    """Draw numbers; those that will be repeated are of few bits, so that their sums are exact.

    Roundings of one number over and over have one sign. The normwise gate takes them to be independent.
    """
    kind = draw(st.sampled_from(values))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    data = torch.randn(shape, generator=generator, dtype=torch.float64)
    if repeated:
        data = (data * 8).round() / 8
    if kind == "large":
        data *= LARGE[dtype]
    elif kind == "denormal":
        data *= torch.finfo(dtype).smallest_normal / 4
    elif kind == "equal":
        data.fill_(draw(st.sampled_from([0.0, -0.0, 1.0, -3.5])))
    elif kind == "few":  # of which many are the largest
        data = data.round()
    elif kind in ("nan", "inf"):
        flat, step = data.view(-1), draw(st.sampled_from([1, 2, 7, 1000]))
        odd = torch.nan if kind == "nan" else torch.inf
        flat[::step] = torch.copysign(torch.full_like(flat[::step], odd), flat[::step])
    return data.to(dtype)


ORDINARY = ("normal", "equal", "large", "denormal")
ANY = (*ORDINARY, "nan", "inf")
LAYOUTS = ("contiguous", "contiguous", "permuted", "sliced", "offset", "expanded", "channels_last", "turned")


def tensor(
    draw: Draw,
    shape: Shape,
    dtype: torch.dtype,
    values: tuple[str, ...] = ANY,
    layouts: tuple[str, ...] = LAYOUTS,
) -> Tensor:
    """Draw a tensor of this shape: its numbers, and how they lie in memory."""
    layout = draw(st.sampled_from(layouts))
    if layout == "expanded" and shape:
        repeated = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
        base = tuple(1 if i in repeated else n for i, n in enumerate(shape))
        return _numbers(draw, base, dtype, values, repeated=True).expand(shape)
    data = _numbers(draw, shape, dtype, values)
    if layout == "permuted" and shape:
        order = draw(st.permutations(range(len(shape))))
        back = [order.index(i) for i in range(len(shape))]
        return data.permute(order).contiguous().permute(back)
    if layout == "sliced" and shape:
        axis, step = draw(st.integers(0, len(shape) - 1)), draw(st.integers(2, 3))
        room = data.new_full([n * step if i == axis else n for i, n in enumerate(shape)], 3)
        view = room[tuple(slice(None, None, step if i == axis else 1) for i in range(len(shape)))]
        return view.copy_(data)
    if layout == "offset":
        start = draw(st.integers(1, 5))
        return torch.cat([data.new_full((start,), 3), data.flatten()])[start:].view(shape)
    if layout == "channels_last" and len(shape) == 4:
        return data.contiguous(memory_format=torch.channels_last)
    if layout == "turned" and len(shape) > 1:
        return data.mT.contiguous().mT
    return data


def _broadcast_to(draw: Draw, shape: Shape) -> Shape:
    """Draw a shape that broadcasts to ``shape``."""
    cut = draw(st.integers(0, len(shape)))
    return tuple(1 if draw(st.booleans()) and draw(st.booleans()) else n for n in shape[cut:])


def _numbers_or(draw: Draw, made: Callable[[], Tensor]) -> Any:
    return draw(st.sampled_from([0, 1, -2, 0.5, -1e3])) if draw(st.integers(0, 5)) == 0 else made()


@strategy
def add(draw: Draw, most: int) -> tuple[Any, ...]:
    """Broadcast either side, mix types, write into an ``out`` with or without gaps."""
    shape, dtype = draw(shapes(most)), draw(dtypes())
    other = draw(dtypes()) if draw(st.integers(0, 3)) == 0 else dtype
    sizes = [shape, _broadcast_to(draw, shape)]
    first, second = reversed(sizes) if draw(st.integers(0, 3)) == 0 else sizes
    x = tensor(draw, first, dtype)
    y = _numbers_or(draw, lambda: tensor(draw, second, other))
    alpha = draw(st.sampled_from([1, 1, 0, 2, -1, 0.5, -2.75]))
    out = None
    if draw(st.integers(0, 3)) == 0:
        result = torch.result_type(x, y)
        whole = torch.broadcast_shapes(x.shape, y.shape if isinstance(y, Tensor) else ())
        plain = tuple(layout for layout in LAYOUTS if layout != "expanded")
        out = tensor(draw, tuple(whole), result, ("normal",), plain)
    return x, y, alpha, out


@strategy
def add_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Either operand broadcast, each gradient asked for or not."""
    shape, dtype = draw(shapes(most)), draw(dtypes())
    mask = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    alpha = draw(st.sampled_from([1, 2, -0.5, 0]))
    grad = tensor(draw, shape, dtype)
    return grad, _broadcast_to(draw, shape), _broadcast_to(draw, shape), alpha, mask


def axes(draw: Draw, ndim: int) -> Any:
    """Draw what names axes of a tensor of so many dimensions."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([None, ()]))
    span = max(ndim, 1)
    axes = draw(st.lists(st.integers(0, span - 1), min_size=1, max_size=span, unique=True))
    signed = tuple(a - span if draw(st.booleans()) else a for a in axes)
    return signed[0] if len(signed) == 1 and draw(st.booleans()) else signed


@strategy
def sum(draw: Draw, most: int) -> tuple[Any, ...]:  # noqa: A001  the operator's name
    """Any axes, in any order and from either end."""
    x = tensor(draw, draw(shapes(most)), draw(dtypes()))
    return x, axes(draw, x.ndim), draw(st.booleans())


@strategy
def sum_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A gradient of the sum's shape."""
    size, keepdim = draw(shapes(most)), draw(st.booleans())
    dim = axes(draw, len(size))
    gone = canonical_dims(dim, len(size))
    shape = tuple(1 if i in gone else n for i, n in enumerate(size) if keepdim or i not in gone)
    return tensor(draw, shape, draw(dtypes())), size, dim, keepdim


@strategy
def sum_to_size(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any shape that broadcasts to the input's."""
    x = tensor(draw, draw(shapes(most)), draw(dtypes()))
    return x, _broadcast_to(draw, tuple(x.shape))


@strategy
def sum_to_size_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A gradient that broadcasts to the size."""
    size = draw(shapes(most))
    return tensor(draw, _broadcast_to(draw, size), draw(dtypes())), size


def _images(draw: Draw, most: int) -> Shape:
    """Draw (N, C, H, W) or (C, H, W)."""
    shape = tuple(n or 1 for n in draw(shapes(most, 4, 4)))
    if draw(st.integers(0, 19)) == 0:
        return (0, *shape[1:])
    return shape[1:] if draw(st.integers(0, 5)) == 0 else shape


def _pair(draw: Draw, values: st.SearchStrategy[int]) -> Any:
    return draw(values) if draw(st.booleans()) else (draw(values), draw(values))


def _both(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _pool(draw: Draw, size: Shape, dilated: bool) -> tuple[Any, ...]:
    """Draw a window that fits: kernel size, stride, padding, dilation and ceil_mode."""
    height, width = size[-2:]
    kernel = _pair(draw, st.sampled_from([1, 2, 3, 3, 4, 5, 7, 11]))
    kernel = tuple(min(k, n) for k, n in zip(_both(kernel), (height, width), strict=True))
    stride = (
        draw(st.sampled_from([None, ()])) if draw(st.integers(0, 4)) == 0 else _pair(draw, st.integers(1, 4))
    )
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    room = [
        (n + 2 * p - 1) // max(k - 1, 1) for n, p, k in zip((height, width), padding, kernel, strict=True)
    ]
    dilation = tuple(draw(st.integers(1, max(min(r, 3), 1))) for r in room) if dilated else (1, 1)
    return kernel, stride, padding, dilation, draw(st.booleans())


@strategy
def max_pool2d(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any window, with and without the indices."""
    return (*draw(max_pool2d_with_offsets(most)), draw(st.integers(0, 3)) == 0)


@strategy
def max_pool2d_with_offsets(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any window."""
    size = _images(draw, most)
    return (tensor(draw, size, draw(dtypes())), *_pool(draw, size, dilated=True))


@strategy
def max_pool2d_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """The offsets of some input, in the layout that they have and in another."""
    x, *window = draw(max_pool2d_with_offsets(most))
    _, offsets = WITH_OFFSETS.reference(x, *window)
    if draw(st.integers(0, 3)) == 0:
        offsets = offsets.contiguous()
    return tensor(draw, tuple(offsets.shape), x.dtype), offsets, tuple(x.shape), *window


@strategy
def avg_pool2d(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any window, and every way to divide."""
    size = _images(draw, most)
    kernel, stride, padding, _, ceil_mode = _pool(draw, size, dilated=False)
    divisor = draw(st.sampled_from([None, None, None, 5, -3]))
    x, counted = tensor(draw, size, draw(dtypes())), draw(st.booleans())
    return x, kernel, stride, padding, ceil_mode, counted, divisor


@strategy
def avg_pool2d_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Gradients in either memory format, of images in either."""
    x, *window = draw(avg_pool2d(most))
    size = tuple(x.shape)
    seen = Window.of_pool(size, *window[:3], 1, window[3])
    return tensor(draw, (*size[:-2], *seen.outputs), x.dtype), size, *window, memory_format(x)


@strategy
def global_avg_pool2d(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any image."""
    return (tensor(draw, _images(draw, most), draw(dtypes())),)


@strategy
def global_avg_pool2d_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A gradient of one value a channel."""
    size = _images(draw, most)
    return tensor(draw, (*size[:-2], 1, 1), draw(dtypes())), size


STRATEGIES["global_max_pool2d"] = STRATEGIES["global_max_pool2d_with_offsets"] = global_avg_pool2d


@strategy
def global_max_pool2d_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Some pixel of each channel."""
    grad, size = draw(global_avg_pool2d_backward(most))
    offsets = (torch.arange(grad.numel()) * 37 % (size[-2] * size[-1])).int().view(grad.shape)
    last = torch.channels_last if len(size) == 4 else torch.contiguous_format
    return grad, offsets, size, draw(st.sampled_from([torch.contiguous_format, last]))


@strategy
def depthwise_conv2d(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any filter that fits, and any padding.

    No NaN or infinity in a filter: torch multiplies it by the zeros of the padding too.
    """
    size, dtype = _images(draw, most), draw(dtypes())
    channels, *image = size[-3:]
    padding: Any = draw(st.sampled_from(["same", "valid", 0, 1, 2, (2, 0), (1, 3)]))
    most_taps = [
        n + 2 * p for n, p in zip(image, (0, 0) if isinstance(padding, str) else _both(padding), strict=True)
    ]
    sides = [draw(st.sampled_from([k for k in (1, 2, 3, 3, 4, 5, 7) if k <= n])) for n in most_taps]
    room = [(n - 1) // max(k - 1, 1) for n, k in zip(most_taps, sides, strict=True)]
    dilation = tuple(draw(st.integers(1, max(min(r, 3), 1))) for r in room)
    stride = 1 if padding == "same" else _pair(draw, st.integers(1, 3))
    x = tensor(draw, size, dtype)
    weight = tensor(draw, (channels, 1, *sides), dtype, ("normal", "equal"))
    return x, weight, stride, padding, dilation


@strategy
def depthwise_conv2d_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, of ordinary numbers: torch multiplies the padding's zeros by all of them."""
    x, weight, *rest = draw(depthwise_conv2d(most))
    seen = Window.of_convolution(tuple(x.shape), tuple(weight.shape[-2:]), *rest)
    x = tensor(draw, tuple(x.shape), x.dtype, ORDINARY)
    grad = tensor(draw, (*x.shape[:-2], *seen.outputs), x.dtype, ORDINARY)
    mask = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    return grad, x, weight, *rest, mask


@strategy
def sep_conv2d(draw: Draw, most: int) -> tuple[Any, ...]:
    """Square windows for the most part, and a few channels out; weights as depthwise_conv2d's."""
    size, dtype = _images(draw, most), draw(dtypes())
    windows = [
        (k, d, p)
        for k, d in product((1, 3, 5, 7, 2), (1, 2))
        for p in (d * (k // 2), 0)
        if min(size[-2:]) + 2 * p > d * (k - 1)
    ]
    k, dilation, padding = draw(st.sampled_from(windows))
    weight = tensor(draw, (size[-3], 1, k, k), dtype, ("normal", "equal"))
    points = tensor(
        draw, (draw(st.sampled_from([1, 2, 3, 5, 8])), size[-3], 1, 1), dtype, ("normal", "equal")
    )
    stride = draw(st.sampled_from([1, 1, 2, 3]))
    return tensor(draw, size, dtype), weight, points, stride, padding, dilation, draw(st.booleans())


@strategy
def sep_conv2d_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients, of ordinary numbers as depthwise_conv2d_backward's."""
    x, weight, points, *rest, relu = draw(sep_conv2d(most))
    seen = Window.of_convolution(tuple(x.shape), tuple(weight.shape[-2:]), *rest)
    x = tensor(draw, tuple(x.shape), x.dtype, ORDINARY)
    grad = tensor(draw, (*x.shape[:-3], points.shape[0], *seen.outputs), x.dtype, ORDINARY)
    return grad, x, weight, points, *rest, relu, draw(st.sampled_from([(True,) * 3, (True, False, False)]))
