"""Functions of float32 without calls and branches, so that a loop of them becomes vector code.

Numba calls the C library once for each element where Intel's vector library is missing. The polynomials are
those of Cephes (S. L. Moshier, Methods and Programs for Mathematical Functions, 1989), that of ``erf`` is
Eigen's; each is right to a few units in the last place.
"""

# mypy: ignore-errors

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nxcore_numba import threads

F = np.float32
LOG2E, LN2_HIGH, LN2_LOW = F(1.44269504088896341), F(0.693359375), F(-2.12194440e-4)
HIGHEST, LOWEST = F(89.0), F(-104.0)  # beyond these, exp is infinite, or 0
TINY, UP, ROOT = F(1.17549435e-38), F(8388608.0), F(0.70710678118654752)


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


@threads.jit(inline="always")
def power(n):
    """Return 2**n for a whole n from -126 to 127."""
    return number(types.int32((types.int32(n) + types.int32(127)) << types.int32(23)))


@threads.jit(inline="always")
def _reduced(x):
    """Return n and exp(r) - 1, where x = n log(2) + r."""
    n = F(math.floor(x * LOG2E + F(0.5)))
    r = x - n * LN2_HIGH - n * LN2_LOW
    p = F(1.9875691500e-4) * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    return n, p * (r * r) + r


@threads.jit(inline="always")
def exp(x):
    """Return exp(x)."""
    inside = HIGHEST if x > HIGHEST else x
    inside = LOWEST if inside < LOWEST else inside
    inside = F(0) if x != x else inside  # NaN has no whole part
    n, p = _reduced(inside)
    half = F(math.floor(n * F(0.5)))
    found = (p + F(1)) * power(half) * power(n - half)
    return x if x != x else found


@threads.jit(inline="always")
def expm1(x):
    """Return exp(x) - 1, also right for small x."""
    inside = F(88.0) if x > F(88.0) else x
    inside = F(-20.0) if inside < F(-20.0) else inside
    inside = F(0) if x != x else inside
    n, p = _reduced(inside)
    scale = power(n)
    found = p * scale + (scale - F(1))
    found = exp(x) if x > F(88.0) else found
    return x if x != x else found


@threads.jit(inline="always")
def log(x):
    """Return the natural logarithm."""
    small = x < TINY
    scaled = x * UP if small else x
    raw = bits(scaled)
    e = F((raw >> types.int32(23)) - types.int32(126)) - (F(23) if small else F(0))
    m = number((raw & types.int32(0x007FFFFF)) | types.int32(0x3F000000))
    below = m < ROOT
    e = e - F(1) if below else e
    m = (m + m if below else m) - F(1)
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
    found = F(-np.inf) if x == F(0) else found
    found = F(np.nan) if x < F(0) else found
    return x if x != x or x == F(np.inf) else found


@threads.jit(inline="always")
def log1p(x):
    """Return log(1 + x), also right for small x."""
    u = x + F(1)
    found = log(u) - ((u - F(1)) - x) / u
    found = F(-np.inf) if x == F(-1) else found
    return x if x == F(np.inf) else found


@threads.jit(inline="always")
def tanh(x):
    """Return the hyperbolic tangent."""
    t = expm1(F(-2) * F(abs(x)))
    found = -t / (t + F(2))
    found = -found if x < F(0) else found
    return x if x == F(0) else found


@threads.jit(inline="always")
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return F(1) / (F(1) + exp(-x))


@threads.jit(inline="always")
def erf(x):
    """Return the error function."""
    y = F(4) if x > F(4) else x
    y = F(-4) if y < F(-4) else y
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
    return F(1) if x > F(0) else (F(-1) if x < F(0) else F(0))


@threads.jit(inline="always")
def minimum(a, b):
    """Return the smaller, NaN if one is."""
    return a if a < b or a != a else b


@threads.jit(inline="always")
def maximum(a, b):
    """Return the larger, NaN if one is."""
    return a if a > b or a != a else b
