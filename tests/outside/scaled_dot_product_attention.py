"""Strategies: valid calls of scaled_dot_product_attention."""

from typing import Any

from hypothesis import strategies as st

from tests.outside.strategies import Draw, dtypes, strategy, tensor


@strategy
def scaled_dot_product_attention(draw: Draw, most: int) -> tuple[Any, ...]:
    """Heads of any layout, some causal, some masked."""
    images, heads, queries, keys = (draw(st.integers(1, 4)) for _ in range(4))
    width, dtype = draw(st.sampled_from([1, 7, 8, 16])), draw(dtypes())
    sizes = ((images, heads, rows, width) for rows in (queries, keys, keys))
    query, key, value = (tensor(draw, size, dtype, ("normal", "equal")) for size in sizes)
    mask = draw(st.none() | st.just(tensor(draw, (queries, keys), dtype, ("normal",))))
    return query, key, value, mask, 0.0, mask is None and draw(st.booleans()), None, False
