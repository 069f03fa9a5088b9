"""amax, amin, max, min, argmax, argmin, any, all: one reduction each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem, canonical_dims
from nxcore_jax.bridge import Bridged, wide

Compute = Callable[[jax.Array, Any, bool], Any]


def element(find: Callable[..., jax.Array]) -> Compute:
    """Return the reduction by ``find`` over the axes that ``dim`` names as torch does."""

    def compute(x: jax.Array, dim: Any, keepdim: bool) -> jax.Array:
        return find(wide(x), axis=canonical_dims(dim, x.ndim), keepdims=keepdim)

    return compute


def index(find: Callable[..., jax.Array]) -> Compute:
    """Return the index that ``find`` finds along an axis, or among all elements."""

    def compute(x: jax.Array, dim: Any, keepdim: bool) -> jax.Array:
        if dim is None or not x.ndim:
            return find(wide(x).reshape(-1))
        return find(wide(x), axis=dim, keepdims=keepdim)

    return compute


def pair(value: Callable[..., jax.Array], place: Callable[..., jax.Array]) -> Compute:
    """Return both."""
    values, indices = element(value), index(place)
    return lambda x, dim, keepdim: (values(x, dim, keepdim), indices(x, dim, keepdim))


def flag(find: Callable[..., jax.Array]) -> Compute:
    """Return the reduction of whether elements are other than 0."""

    def compute(x: jax.Array, dim: Any, keepdim: bool) -> jax.Array:
        # By their bits: XLA takes a subnormal number for 0.
        bits = jax.lax.bitcast_convert_type(wide(x), jnp.int32)
        return find(bits & 0x7FFFFFFF != 0, axis=canonical_dims(dim, x.ndim), keepdims=keepdim)

    return compute


COMPUTE: dict[str, Compute] = {
    "amax": element(jnp.max),
    "amin": element(jnp.min),
    "max": pair(jnp.max, jnp.argmax),
    "min": pair(jnp.min, jnp.argmin),
    "argmax": index(jnp.argmax),
    "argmin": index(jnp.argmin),
    "any": flag(jnp.any),
    "all": flag(jnp.all),
}


def plan(problem: Problem) -> Bridged:
    """Jit the reduction."""
    return Bridged(problem, COMPUTE[problem.op])
