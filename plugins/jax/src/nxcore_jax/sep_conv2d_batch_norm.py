"""sep_conv2d_batch_norm: what sep_conv2d computes, then what batch_norm does, as one function."""

from __future__ import annotations

from typing import Any

import jax

from nxcore.plugin import Problem
from nxcore_jax import batch_norm, sep_conv2d
from nxcore_jax.bridge import Bridged


def compute(*args: Any) -> tuple[jax.Array, ...]:
    """Return the output, what lies before the norm, and the statistics."""
    *convolution, weight, bias, eps = args
    y = sep_conv2d.compute(*convolution)
    out, mean, var = batch_norm.compute(y, weight, bias, eps)
    return out, y, mean, var


def plan(problem: Problem) -> Bridged:
    """Jit all of it."""
    return Bridged(problem, compute)
