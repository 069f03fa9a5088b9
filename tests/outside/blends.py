"""Strategies of the operators that blend tensors; they enter themselves."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.outside.strategies import ANY, LAYOUTS, ORDINARY, Draw, dtypes, shapes, strategy, tensor


@strategy
def softmax_sum(draw: Draw, most: int) -> tuple[Any, ...]:
    """A stack or a list, of one layout or of many; logits of the same type or of float32."""
    count = draw(st.sampled_from([1, 2, 3, 5, 8, 9]))
    shape, dtype = draw(shapes(most // count)), draw(dtypes())
    logits_of = draw(st.sampled_from([dtype, torch.float32]))
    # A weight may underflow in float32 and not in float64: no infinity meets one that may.
    values, spread = draw(st.sampled_from([(ANY, ("normal", "equal")), (ORDINARY, ("large", "nan"))]))
    logits = tensor(draw, (count,), logits_of, spread)
    if draw(st.booleans()):
        return tensor(draw, (count, *shape), dtype, values), logits
    layouts = draw(st.sampled_from([LAYOUTS, *((layout,) for layout in LAYOUTS)]))
    return tuple(tensor(draw, shape, dtype, values, layouts) for _ in range(count)), logits


@strategy
def softmax_sum_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients."""
    xs, logits = draw(softmax_sum(most))
    first, tensors = xs[0], 1 if isinstance(xs, Tensor) else len(xs)
    mask = draw(st.one_of(st.none(), st.tuples(*[st.booleans()] * (tensors + 1)).filter(any)))
    grad = tensor(draw, tuple(first.shape), first.dtype, ORDINARY)
    return grad, xs, logits, mask


@strategy
def column_sums(draw: Draw, most: int) -> tuple[Any, ...]:
    """A stack, or matrices of several sizes and layouts."""
    count, dtype = draw(st.sampled_from([1, 2, 3, 5, 17])), draw(dtypes())
    sizes = [draw(shapes(most // count, 2, 2)) for _ in range(count)]
    if draw(st.booleans()):
        return (tensor(draw, (count, *sizes[0]), dtype, ORDINARY),)
    return (tuple(tensor(draw, size, dtype, ORDINARY) for size in sizes),)


@strategy
def weighted_sum(draw: Draw, most: int) -> tuple[Any, ...]:
    """As softmax_sum, with weights of any sign."""
    xs, logits = draw(softmax_sum(most))
    weights = tensor(draw, tuple(logits.shape), logits.dtype, ("normal", "equal"))
    return (xs if isinstance(xs, Tensor) else tuple(xs)), weights


@strategy
def weighted_sum_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any of the gradients."""
    grad, xs, logits, mask = draw(softmax_sum_backward(most))
    return grad, xs, tensor(draw, tuple(logits.shape), logits.dtype, ("normal", "equal")), mask
