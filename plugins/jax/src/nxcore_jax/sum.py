"""sum: one reduction in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem, canonical_dims
from nxcore_jax.bridge import Bridged, wide


def compute(x: jax.Array, dim: Any, keepdim: bool) -> jax.Array:
    """Return the sum over the axes that ``dim`` names as torch does."""
    return jnp.sum(wide(x), axis=canonical_dims(dim, x.ndim), keepdims=bool(keepdim))


def plan(problem: Problem) -> Bridged:
    """Jit the sum."""
    return Bridged(problem, compute)
