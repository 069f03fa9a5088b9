"""The softmax of a few logits, which every program computes for itself; or weights as they are given.

Every exponential here is of a number that is not above 0, or NaN.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from nxcore_triton.rounding import widen

INVERSE_LN2 = tl.constexpr(1.4426950408889634)
LN2_HIGH = tl.constexpr(0.693359375)  # 9 bits: its product with a whole number below 2^15 is exact
LN2_LOW = tl.constexpr(-2.1219444005469057e-4)
UNDERFLOW = tl.constexpr(-104.0)  # exp of less is 0 in float32


@triton.jit
def exp(x):
    """Return e^x to a rounding or two; ``tl.exp`` is the hardware's approximation and loses more.

    Reduction of the argument by multiples of ln 2 in two parts: Cody and Waite 1980. The rest is at most
    ln 2 / 2, where Taylor's polynomial of degree 7 is off by 6e-9.
    """
    x = tl.where(x < UNDERFLOW, UNDERFLOW, x)  # not tl.maximum, which would drop NaN
    whole = tl.floor(x * INVERSE_LN2 + 0.5)
    rest = (x - whole * LN2_HIGH) - whole * LN2_LOW
    series = 1 / 720 + rest * (1 / 5040)
    series = 1 / 120 + rest * series
    series = 1 / 24 + rest * series
    series = 1 / 6 + rest * series
    series = 0.5 + rest * series
    return tl.exp2(whole) * (1 + (rest + rest * rest * series))


@triton.jit
def each(factors, step, COUNT: tl.constexpr, SOFTMAX: tl.constexpr):
    """Return the weights as a tuple of float32 scalars: of logits if SOFTMAX, else as they are given."""
    if SOFTMAX:
        return softmax_each(factors, step, COUNT)
    else:
        values = ()
        for i in tl.static_range(COUNT):
            values = values + (widen(tl.load(factors + i * step)),)
        return values


@triton.jit
def softmax_each(logits, step, COUNT: tl.constexpr):
    """Return the softmax of ``COUNT`` logits as a tuple of float32 scalars."""
    values = ()
    top = widen(tl.load(logits))
    for i in tl.static_range(COUNT):
        value = widen(tl.load(logits + i * step))
        values = values + (value,)
        top = tl.maximum(top, value)
    powers = (exp(values[0] - top),)
    total = powers[0]
    for i in tl.static_range(1, COUNT):
        power = exp(values[i] - top)
        powers = powers + (power,)
        total += power
    weights = ()
    for i in tl.static_range(COUNT):
        weights = weights + (tl.div_rn(powers[i], total),)
    return weights


@triton.jit
def softmax_all(logits, step, COUNT: tl.constexpr, LANES: tl.constexpr):
    """Return the softmax of ``COUNT`` logits as a vector, 0 in the lanes beyond."""
    lane = tl.arange(0, LANES)
    value = widen(tl.load(logits + lane * step, lane < COUNT, other=float("-inf")))
    power = exp(value - tl.max(value, 0))
    return tl.div_rn(power, tl.zeros_like(power) + tl.sum(power, 0))
