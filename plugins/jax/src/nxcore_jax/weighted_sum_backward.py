"""weighted_sum_backward: what softmax_sum_backward does, without the Jacobian of softmax."""

from __future__ import annotations

from typing import Any

import jax

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide
from nxcore_jax.softmax_sum import spread


def compute(grad: jax.Array, xs: Any, weights: jax.Array, output_mask: tuple[bool, ...] | None) -> Any:
    """Return the gradients of a sequence of arrays, or of one that stacks them, and of the weights."""
    return spread(grad, xs, wide(weights), output_mask)


def plan(problem: Problem) -> Bridged:
    """Jit the gradients."""
    return Bridged(problem, compute)
