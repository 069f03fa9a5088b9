"""expressions: in float32, a function of arrays that is generated and jitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from nxcore.plugin import Elementwise, Problem, Statements, TensorMeta, generated, planned, spelled
from nxcore_jax.bridge import Bridged, wide

PLAIN = ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "abs")

TEMPLATES = {
    **{f: f"jnp.{f}({{0}})" for f in PLAIN},
    **{f: f"jax.lax.{f}({{0}})" for f in ("erf", "rsqrt")},
    **{f: f"jnp.{f}({{0}}, {{1}})" for f in ("minimum", "maximum")},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in zip(("add", "sub", "mul", "div"), "+-*/", strict=True)},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "~({0})",
    "neg": "-{0}",
    "sign": "jnp.where({0} > 0, 1.0, jnp.where({0} < 0, -1.0, 0.0))",  # 0 for NaN, as torch's
    "sigmoid": "1 / (1 + jnp.exp(-{0}))",
    "indicator": "jnp.where({0}, 1.0, 0.0)",
    "where": "jnp.where({0}, {1}, {2})",
    "clamp_min": "jnp.where({0} < {1}, {1}, {0})",
    "clamp_max": "jnp.where({0} > {1}, {1}, {0})",
    "cast": "{0}",
}
"""Each function in JAX; all is float32."""


def text(found: Elementwise) -> str:
    """Return the module for an expression."""
    expression = found.expression
    names = [*expression.tensors, *(name for name, _ in expression.numbers)]
    statements = Statements.of(
        expression,
        TEMPLATES,
        lambda value: spelled(value, infinity="jnp.inf", nan="jnp.nan"),
        lambda node: f"v_{node.value}",
    )
    lines = [f"    {line.name} = {line.value}" for line in statements.lines]
    return "\n".join(
        [
            "import jax",
            "import jax.numpy as jnp",
            "",
            "",
            f"def compute({', '.join(f'v_{name}' for name in names)}):",
            *lines,
            f"    return ({', '.join(statements.results)},)",
            "",
        ]
    )


def plan(problem: Problem) -> Callable[..., Any]:
    """Jit the expression; what must be added up is added up by JAX too."""
    found = Elementwise.of(problem)
    if not found.results:  # every requested gradient is the incoming one
        return planned(problem, lambda _: lambda _tensors, _numbers: None)
    module = generated("jax", text(found))
    shape = found.results[0].shape
    single = isinstance(problem.outputs, TensorMeta)

    def compute(*args: Any) -> Any:
        given = ((args[place], meta) for place, meta in zip(found.places, found.inputs, strict=True))
        arrays = [array.astype(bool) if meta.dtype is torch.bool else wide(array) for array, meta in given]
        results_here = module.compute(*arrays, *(args[i] for i in found.numbers))
        whole = [jnp.broadcast_to(result, shape) for result in results_here]
        if single:
            return whole[0]
        results: list[jax.Array | None] = [None] * len(problem.outputs)
        for (owner, meta), result in zip(found.finish, whole, strict=True):
            results[owner] = result if meta is None else _summed(result, meta.shape)
        return tuple(results)

    if single:
        return Bridged(problem, compute)
    made = {owner for owner, _ in found.finish}
    outputs = tuple(out if i in made else None for i, out in enumerate(problem.outputs))
    bridged = Bridged(problem, compute, outputs)
    copied = [i for i, out in enumerate(problem.outputs) if out is not None and i not in made]

    def call(*args: Any) -> tuple[Any, ...]:
        results = list(bridged(*args))
        for owner in copied:
            results[owner] = args[0]
        return tuple(results)

    return call


def _summed(whole: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """Undo the broadcast from ``size``."""
    lead = whole.ndim - len(size)
    axes = tuple(i for i in range(whole.ndim) if i < lead or (size[i - lead] == 1 and whole.shape[i] != 1))
    return jnp.sum(whole, axes, keepdims=True).reshape(size)


def source(problem: Problem) -> str:
    """Return the code for one problem."""
    return text(Elementwise.of(problem))
