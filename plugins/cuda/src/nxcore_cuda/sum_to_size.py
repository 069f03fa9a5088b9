"""sum_to_size: one reduction over what was broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem, Reduction
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.sum import Tile, Walk, candidates, plan_reduction, shares
from nxcore_cuda.sum import instances as of_sums


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x, size)``.
    """
    out, reduction = problem.outputs, Reduction.of_sum_to_size(problem)
    if reduction is None:
        return lambda x, size: x.view(size)
    run = plan_reduction(problem["x"], reduction, tile)

    def call(x: Tensor, size: Any) -> Tensor:
        total = out.empty()
        run(x, total, 1.0)
        return total

    return call


def branch(problem: Problem) -> bool:
    """Return whether blocks share outputs."""
    reduction = Reduction.of_sum_to_size(problem)
    return reduction is not None and shares(problem["x"], reduction)


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    if reduction := Reduction.of_sum_to_size(problem):
        itemsize = problem["x"].element_size()
        yield from candidates(Walk.of(reduction).widest(itemsize), itemsize)


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from of_sums()
