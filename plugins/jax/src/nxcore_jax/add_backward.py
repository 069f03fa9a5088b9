"""add_backward: a reduction for each operand that was broadcast, the other's gradient scaled at most."""

from __future__ import annotations

from typing import Any

import jax

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged
from nxcore_jax.sum_to_size import summed


def compute(
    grad: jax.Array,
    x_size: tuple[int, ...],
    y_size: tuple[int, ...],
    alpha: Any,
    output_mask: tuple[bool, ...],
) -> Any:
    """Return both gradients, None for one that isn't asked for."""
    return (
        summed(grad, x_size) if output_mask[0] else None,
        alpha * summed(grad, y_size) if output_mask[1] else None,
    )


def plan(problem: Problem) -> Bridged:
    """Jit the gradients."""
    return Bridged(problem, compute)
