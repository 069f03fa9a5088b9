"""The axes that are summed to undo a broadcast. Imports no jax, because ``accepts`` uses it."""

from __future__ import annotations

from nxcore.plugin import Problem, TensorMeta, summed_dims


def summed_gradients(problem: Problem) -> tuple[TensorMeta | None, ...]:
    """Return those gradients of an ``add_backward`` that are sums; the others are views of ``grad``."""
    shape, sizes = problem["grad"].shape, (problem["x_size"], problem["y_size"])
    gradients = zip(problem.outputs, sizes, strict=True)
    return tuple(out if out is not None and summed_dims(shape, size) else None for out, size in gradients)
