"""sep_conv2d_backward: what JAX's own differentiation makes of the convolutions in float32."""

from __future__ import annotations

from typing import Any

import jax

from nxcore.plugin import Problem
from nxcore_jax.bridge import Bridged, wide
from nxcore_jax.sep_conv2d import separable


def compute(
    grad: jax.Array, x: jax.Array, dw_weight: jax.Array, pw_weight: jax.Array, *arguments: Any
) -> Any:
    """Return the gradients, None for one that isn't asked for."""
    *where, relu, mask = arguments
    given = (wide(x), wide(dw_weight), wide(pw_weight))
    _, pull = jax.vjp(lambda *tensors: separable(*tensors, *where, relu=relu), *given)
    return tuple(g if asked else None for g, asked in zip(pull(wide(grad)), mask, strict=True))


def plan(problem: Problem) -> Bridged:
    """Jit the gradients."""
    return Bridged(problem, compute)
