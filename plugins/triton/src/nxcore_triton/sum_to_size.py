"""sum_to_size: one reduction over what broadcasting repeated, by the kernel of sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem, Reduction
from nxcore_triton.sum import Blocks, plan_reduction, variations


def plan(problem: Problem, tile: Blocks | None = None) -> Callable[..., Tensor]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(x, size)``.
    """
    out, reduction = problem.outputs, Reduction.of_sum_to_size(problem)
    if reduction is None:
        return lambda x, size: x.view(size)
    run = plan_reduction(reduction, problem.device, blocks=tile)

    def call(x: Tensor, size: Any) -> Tensor:
        total = out.empty()
        run(x, total, 1.0)
        return total

    return call


def sweep(problem: Problem) -> Iterator[Blocks]:
    """Yield the blocks worth timing."""
    if reduction := Reduction.of_sum_to_size(problem):
        yield from variations(reduction)
