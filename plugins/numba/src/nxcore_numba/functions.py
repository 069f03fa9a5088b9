"""Functions of float32 without calls and branches, so that a loop of them becomes vector code.

Numba calls the C library once for each element where Intel's vector library is missing. The polynomials are
those of Cephes (S. L. Moshier, Methods and Programs for Mathematical Functions, 1989), that of ``erf`` is
Eigen's; each is right to a few units in the last place.
"""

# mypy: ignore-errors

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nxcore_numba import threads

F = np.float32
LOG2E, LN2_HIGH, LN2_LOW = F(1.44269504088896341), F(0.693359375), F(-2.12194440e-4)
HIGHEST, LOWEST = F(89.0), F(-104.0)  # beyond these, exp is infinite, or 0
TINY, UP, ROOT = F(1.17549435e-38), F(8388608.0), F(0.70710678118654752)
ROUNDING = F(12582912.0)  # 1.5 * 2**23: a float32 of that size has no digits behind the point
SIGN = np.int32(-(2**31))


@intrinsic
def bits(typingctx, value):
    """Return the bits of a float32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), codegen


@intrinsic
def number(typingctx, value):
    """Return the float32 of these bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def choose(typingctx, condition, a, b):
    """Return ``a if condition else b`` of float32, without the branch that Numba makes of that."""

    def codegen(context, builder, signature, args):
        return builder.select(*args)

    return types.float32(types.boolean, types.float32, types.float32), codegen


@threads.jit(inline="always")
def power(n):
    """Return 2**n for a whole n from -126 to 127."""
    return number(types.int32((n + types.int32(127)) << types.int32(23)))


@threads.jit(inline="always")
def _reduced(x):
    """Return n and exp(r) - 1, where x = n log(2) + r."""
    shifted = x * LOG2E + ROUNDING  # its last bits are n; math.floor would go by way of int64
    n = shifted - ROUNDING
    r = x - n * LN2_HIGH - n * LN2_LOW
    p = F(1.9875691500e-4) * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    return types.int32(bits(shifted) - bits(ROUNDING)), p * (r * r) + r


@threads.jit(inline="always")
def _within(x, low, high):
    """Return x, or the bound that it is beyond; NaN stays, and makes all that follows NaN."""
    below = choose(x > high, high, x)
    return choose(below < low, low, below)


@threads.jit(inline="always")
def exp(x):
    """Return exp(x)."""
    n, p = _reduced(_within(x, LOWEST, HIGHEST))
    half = types.int32(n >> types.int32(1))  # 2**n itself may be too large, or too small
    scale = power(half)
    return (p * scale + scale) * power(types.int32(n - half))


@threads.jit(inline="always")
def expm1(x):
    """Return exp(x) - 1, also right for small x."""
    n, p = _reduced(_within(x, F(-20.0), HIGHEST))
    half = types.int32(n >> types.int32(1))
    rest = types.int32(n - half)
    scale = power(half)
    found = (p * scale + (scale - power(types.int32(-rest)))) * power(rest)
    return choose(x == F(0), x, found)  # the sign of 0 too


@threads.jit(inline="always")
def log(x):
    """Return the natural logarithm."""
    small = x < TINY
    raw = bits(choose(small, x * UP, x))
    e = F(types.int32((raw >> types.int32(23)) - types.int32(126))) - choose(small, F(23), F(0))
    m = number(types.int32((raw & types.int32(0x007FFFFF)) | types.int32(0x3F000000)))
    below = m < ROOT
    e = choose(below, e - F(1), e)
    m = choose(below, m + m, m) - F(1)
    z = m * m
    p = F(7.0376836292e-2) * m + F(-1.1514610310e-1)
    p = p * m + F(1.1676998740e-1)
    p = p * m + F(-1.2420140846e-1)
    p = p * m + F(1.4249322787e-1)
    p = p * m + F(-1.6668057665e-1)
    p = p * m + F(2.0000714765e-1)
    p = p * m + F(-2.4999993993e-1)
    p = p * m + F(3.3333331174e-1)
    p = p * m * z + e * LN2_LOW - F(0.5) * z
    found = m + p + e * LN2_HIGH
    found = choose(x == F(0), F(-np.inf), found)
    found = choose(x < F(0), F(np.nan), found)
    return choose((x != x) | (x == F(np.inf)), x, found)


@threads.jit(inline="always")
def log1p(x):
    """Return log(1 + x), also right for small x."""
    u = x + F(1)
    found = log(u) - ((u - F(1)) - x) / u
    found = choose(x == F(-1), F(-np.inf), found)
    return choose((x == F(np.inf)) | (x == F(0)), x, found)


@threads.jit(inline="always")
def tanh(x):
    """Return the hyperbolic tangent."""
    n, p = _reduced(_within(F(-2) * F(abs(x)), F(-20.0), F(0)))
    scale = power(n)
    t = p * scale + (scale - F(1))  # exp(-2 |x|) - 1
    found = bits(t / (t + F(2))) & types.int32(~SIGN)
    return number(types.int32(found | (bits(x) & SIGN)))


@threads.jit(inline="always")
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    n, p = _reduced(_within(-x, F(-80.0), F(89.2)))
    scale = power(types.int32(n - types.int32(1)))  # of half the exponential: infinite from 89.1 on
    return F(0.5) / (F(0.5) + (p + F(1)) * scale)


@threads.jit(inline="always")
def erf(x):
    """Return the error function."""
    y = _within(x, F(-4.0), F(4.0))
    z = y * y
    p = F(-2.72614225801306e-10) * z + F(2.77068142495902e-8)
    p = p * z + F(-2.10102402082508e-6)
    p = p * z + F(-5.69250639462346e-5)
    p = p * z + F(-7.34990630326855e-4)
    p = p * z + F(-2.95459980854025e-3)
    p = p * z + F(-1.60960333262415e-2)
    q = F(-1.45660718464996e-5) * z + F(-2.13374055278905e-4)
    q = q * z + F(-1.68282697438203e-3)
    q = q * z + F(-7.37332916720468e-3)
    q = q * z + F(-1.42647390514189e-2)
    return y * (p / q)


@threads.jit(inline="always")
def sign(x):
    """Return -1, 0 or 1."""
    return choose(x > F(0), F(1), choose(x < F(0), F(-1), F(0)))


@threads.jit(inline="always")
def minimum(a, b):
    """Return the smaller, NaN if one is."""
    return choose(a != a, a, choose(a < b, a, b))


@threads.jit(inline="always")
def maximum(a, b):
    """Return the larger, NaN if one is."""
    return choose(a != a, a, choose(a > b, a, b))
