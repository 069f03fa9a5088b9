"""amax, amin, max, min, argmax, argmin, any, all: one reduction each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nxcore.plugin import Problem, canonical_dims
from nxcore_jax.bridge import Bridged, wide

Compute = Callable[[jax.Array, Any, bool], Any]


def element(find: Callable[..., jax.Array], worst: float) -> Compute:
    """Return the reduction by ``find`` over the axes that ``dim`` names as torch does."""

    def compute(x: jax.Array, dim: Any, keepdim: bool) -> jax.Array:
        how: dict[str, Any] = {"axis": canonical_dims(dim, x.ndim), "keepdims": keepdim}
        odd = jnp.isnan(x)  # XLA's own maximum may lose a NaN
        found = find(jnp.where(odd, worst, wide(x)), **how)
        return jnp.where(jnp.any(odd, **how), jnp.nan, found)

    return compute


def index(find: Callable[..., jax.Array], worst: float) -> Compute:
    """Return the index that ``find`` finds along an axis, or among all elements."""

    def compute(x: jax.Array, dim: Any, keepdim: bool) -> jax.Array:
        if dim is None or not x.ndim:
            x, dim, keepdim = x.reshape(-1), 0, False
        odd = jnp.isnan(x)
        how = {"axis": dim, "keepdims": keepdim}
        found = find(jnp.where(odd, worst, wide(x)), **how)
        return jnp.where(jnp.any(odd, **how), jnp.argmax(odd, **how), found)

    return compute


def pair(values: Compute, indices: Compute) -> Compute:
    """Return both."""
    return lambda x, dim, keepdim: (values(x, dim, keepdim), indices(x, dim, keepdim))


def flag(find: Callable[..., jax.Array]) -> Compute:
    """Return the reduction of whether elements are other than 0."""

    def compute(x: jax.Array, dim: Any, keepdim: bool) -> jax.Array:
        # By their bits: XLA takes a subnormal number for 0.
        bits = jax.lax.bitcast_convert_type(wide(x), jnp.int32)
        return find(bits & 0x7FFFFFFF != 0, axis=canonical_dims(dim, x.ndim), keepdims=keepdim)

    return compute


AMAX, AMIN = element(jnp.max, -jnp.inf), element(jnp.min, jnp.inf)
ARGMAX, ARGMIN = index(jnp.argmax, -jnp.inf), index(jnp.argmin, jnp.inf)

COMPUTE: dict[str, Compute] = {
    "amax": AMAX,
    "amin": AMIN,
    "max": pair(AMAX, ARGMAX),
    "min": pair(AMIN, ARGMIN),
    "argmax": ARGMAX,
    "argmin": ARGMIN,
    "any": flag(jnp.any),
    "all": flag(jnp.all),
}


def plan(problem: Problem) -> Bridged:
    """Jit the reduction."""
    return Bridged(problem, COMPUTE[problem.op])
