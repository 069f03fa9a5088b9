"""Right calls of scans and scatters, drawn by hypothesis; entered among those of ``strategies``."""

from typing import Any

import torch
from hypothesis import strategies as st

from nxcore.ops.index_add import INTEGERS
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


def _index(draw: Draw, count: int, high: int) -> torch.Tensor:
    """Draw indices, of which many may be the same."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    few = draw(st.sampled_from([high, high, 1]))
    return torch.randint(few, (count,), generator=generator, dtype=draw(st.sampled_from(INTEGERS)))


@strategy
def index_add(draw: Draw, most: int) -> tuple[Any, ...]:
    """Any axis of any layout, with fewer or more rows than there are."""
    dtype = draw(dtypes())
    x = tensor(draw, draw(shapes(most // 2, 1, 3).filter(lambda shape: 0 not in shape)), dtype)
    dim = draw(st.integers(-x.ndim, x.ndim - 1))
    count = draw(st.integers(0, 2 * x.shape[dim]))
    shape = tuple(count if i == dim % x.ndim else n for i, n in enumerate(x.shape))
    alpha = draw(st.sampled_from([1, 1, 2, -0.5]))
    return x, dim, _index(draw, count, x.shape[dim]), tensor(draw, shape, dtype, ORDINARY), alpha


@strategy
def index_add_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Either gradient, or both."""
    x, dim, index, _, alpha = draw(index_add(most))
    mask = draw(st.sampled_from([(True, False, True), (True, False, False), (False, False, True)]))
    return x, tuple(x.shape), dim, index, alpha, mask


@strategy
def embedding_dense_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """Few or many rows, one of them perhaps padding."""
    shape = draw(shapes(most, 2, 3).filter(lambda shape: 0 not in shape))
    rows = draw(st.integers(1, 200))
    index = _index(draw, torch.Size(shape[:-1]).numel(), rows).view(shape[:-1])
    padding = draw(st.sampled_from([-1, 0, rows - 1]))
    return tensor(draw, shape, draw(dtypes()), ORDINARY), index, rows, padding, draw(st.booleans())


@strategy
def embedding(draw: Draw, most: int) -> tuple[Any, ...]:
    """Indices of any shape and layout, and a weight of any layout."""
    rows, columns = (draw(st.integers(low, max(most // 64, 2))) for low in (1, 0))
    weight = tensor(draw, (rows, columns), draw(dtypes()), (*ORDINARY, "nan", "inf"))
    shape = draw(shapes(max(most // 64, 1), 0, 3))
    index = _index(draw, torch.Size(shape).numel(), rows).view(shape)
    if draw(st.booleans()) and index.ndim:
        index = index.mT.contiguous().mT if index.ndim > 1 else index.repeat_interleave(2)[::2]
    padding = draw(st.sampled_from([None, 0, -1]))
    return index, weight, padding, None, 2.0, draw(st.booleans()), False


@strategy
def embedding_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """The gradient of a weight."""
    return *draw(embedding_dense_backward(most)), (False, True)
