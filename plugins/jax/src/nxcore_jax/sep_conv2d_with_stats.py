"""sep_conv2d_with_stats: what sep_conv2d computes, and its statistics in two passes."""

from __future__ import annotations

from typing import Any

import jax

from nxcore.plugin import Problem
from nxcore_jax import sep_conv2d
from nxcore_jax.batch_norm import statistics
from nxcore_jax.bridge import Bridged


def compute(*args: Any) -> tuple[jax.Array, ...]:
    """Return the output and the statistics."""
    y = sep_conv2d.compute(*args)
    _, mean, squares, count = statistics(y)
    return y, mean, squares / (count - 1)


def plan(problem: Problem) -> Bridged:
    """Jit the convolutions and the statistics."""
    return Bridged(problem, compute)
