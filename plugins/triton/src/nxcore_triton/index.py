"""From the number of an element to its place in memory."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def offset(index, sizes, strides, RANK: tl.constexpr):
    """Return the int64 offset of row-major ``index`` in a tensor of ``RANK`` strided dimensions.

    The outermost size is not read. Divisions are as wide as ``index``: 64-bit ones are slow.
    """
    rest = index
    total = tl.zeros_like(index).to(tl.int64)
    for step in tl.static_range(RANK):  # innermost first
        if step + 1 < RANK:
            total += (rest % sizes[RANK - 1 - step]).to(tl.int64) * strides[RANK - 1 - step]
            rest = rest // sizes[RANK - 1 - step]
        else:
            total += rest.to(tl.int64) * strides[0]
    return total
