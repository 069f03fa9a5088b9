"""sum, mean, sum_to_size, global_avg_pool2d: one reduction in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem, canonical_dims, summed_dims
from nxcore_jax.bridge import Bridged, wide


def compute(x: jax.Array, dim: Any, keepdim: bool) -> jax.Array:
    """Return the sum over the axes that ``dim`` names as torch does."""
    return jnp.sum(wide(x), axis=canonical_dims(dim, x.ndim), keepdims=bool(keepdim))


def summed(x: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """Return ``x`` summed to ``size``, in float32."""
    return jnp.sum(wide(x), axis=summed_dims(x.shape, size), keepdims=True).reshape(size)


def mean(x: jax.Array, dim: Any = (-2, -1), keepdim: bool = True) -> jax.Array:
    """Return the mean over some axes: height and width, where none is given."""
    return jnp.mean(wide(x), axis=canonical_dims(dim, x.ndim), keepdims=keepdim)


COMPUTE: dict[str, Callable[..., Any]] = {
    "sum": compute,
    "mean": mean,
    "sum_to_size": summed,
    "global_avg_pool2d": mean,
}


def plan(problem: Problem) -> Bridged:
    """Jit the reduction."""
    return Bridged(problem, COMPUTE[problem.op])
