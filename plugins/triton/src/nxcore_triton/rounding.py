"""Between the dtype in memory and float32, in which everything is computed.

Compiled, either way is one conversion. Triton's interpreter cuts off the low bits where it should round
to bfloat16, and loses bfloat16's subnormal numbers, so there both ways are made of bits.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from nxcore_triton import tile

INTERPRETED = tl.constexpr(tile.INTERPRETED)


@triton.jit
def widen(value):
    """Return ``value`` in float32."""
    if INTERPRETED and value.dtype == tl.bfloat16:
        return (value.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return value.to(tl.float32)


@triton.jit
def narrow(value, dtype: tl.constexpr):
    """Return float32 ``value`` in ``dtype``, rounded to nearest, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        kept = tl.where(value == value, rounded, 0x7FC0)
        return kept.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return value.to(dtype)
