"""Functions of float32 that Triton lacks, or that its interpreter lacks."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.44269504088896341)
LN2_HIGH = tl.constexpr(0.693359375)
LN2_LOW = tl.constexpr(-2.12194440e-4)


@triton.jit
def expm1(x):
    """Return exp(x) - 1, also right for small x; the polynomial is Cephes'."""
    inside = tl.where(x > 88.0, 88.0, tl.where(x < -20.0, -20.0, x))
    inside = tl.where(x != x, 0.0, inside)  # NaN has no whole part
    n = tl.floor(inside * LOG2E + 0.5)
    r = inside - n * LN2_HIGH - n * LN2_LOW
    p = 1.9875691500e-4 * r + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * (r * r) + r
    scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    found = p * scale + (scale - 1.0)
    found = tl.where(x > 88.0, tl.exp(x), found)
    return tl.where(x != x, x, found)


@triton.jit
def log1p(x):
    """Return log(1 + x), also right for small x."""
    u = x + 1.0
    found = tl.log(u) - tl.div_rn((u - 1.0) - x, u)
    found = tl.where(x == -1.0, -float("inf"), found)
    return tl.where(x == float("inf"), x, found)


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent."""
    t = expm1(-2.0 * tl.abs(x))
    found = tl.div_rn(-t, t + 2.0)
    found = tl.where(x < 0.0, -found, found)
    return tl.where(x == 0.0, x, found)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def sign(x):
    """Return -1, 0 or 1."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))


@triton.jit
def minimum(a, b):
    """Return the smaller, NaN if one is."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def maximum(a, b):
    """Return the larger, NaN if one is."""
    return tl.where((a > b) | (a != a), a, b)
