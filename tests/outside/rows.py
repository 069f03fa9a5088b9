"""Right calls of the operators on rows, drawn by hypothesis; entered among those of ``strategies``."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.outside.strategies import ORDINARY, Draw, dtypes, shapes, strategy, tensor


def _logits(draw: Draw, most: int) -> Tensor:
    """Draw rows, most often short ones; far apart, a weight may underflow in float32 and not in float64."""
    length = draw(st.sampled_from([n for n in (1, 2, 3, 5, 7, 8, 13, 33, 64, 257, 1025) if n <= most]))
    lead = draw(shapes(most // length, 0, 3))
    return tensor(draw, (*lead, length), draw(dtypes()), ("normal", "normal", "equal", "large", "nan", "inf"))


@strategy
def entropy(draw: Draw, most: int) -> tuple[Any, ...]:
    """Rows of any layout."""
    return (_logits(draw, most),)


@strategy
def entropy_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A gradient of any layout; no infinity meets a weight that may underflow."""
    logits = _logits(draw, most)
    return tensor(draw, tuple(logits.shape[:-1]), logits.dtype, ORDINARY), logits


def _noise(draw: Draw, logits: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    drawn = torch.empty(logits.shape).exponential_(generator=generator)
    return drawn.mT.contiguous().mT if logits.ndim > 1 and draw(st.booleans()) else drawn


def _temperature(draw: Draw) -> Any:
    return draw(
        st.sampled_from([1, 1.0, 0.1, 3.5, torch.tensor(0.7), torch.tensor(2.0, dtype=torch.float16)])
    )


@strategy
def gumbel_softmax(draw: Draw, most: int) -> tuple[Any, ...]:
    """Soft rows of any numbers; hard ones whose largest entry rounding doesn't decide."""
    hard = draw(st.booleans())
    logits = _logits(draw, most)
    if hard:
        logits = tensor(draw, tuple(logits.shape), logits.dtype, ("normal", "nan"))
    return logits, _temperature(draw), hard, _noise(draw, logits)


@strategy
def gumbel_softmax_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """The gradient of the logits; no infinity meets a weight that may underflow."""
    logits = _logits(draw, most)
    grad = tensor(draw, tuple(logits.shape), logits.dtype, ORDINARY)
    return grad, logits, _temperature(draw), _noise(draw, logits), None
