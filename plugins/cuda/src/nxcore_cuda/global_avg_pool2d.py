"""global_avg_pool2d: one reduction by the kernels of sum, and a factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from nxcore.plugin import Problem, Reduction
from nxcore_cuda.sum import Tile, Walk, candidates, instances, plan_reduction, shares

__all__ = ["branch", "instances", "plan", "sweep"]


def plan(problem: Problem, tile: Tile | None = None) -> Callable[[Tensor], Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x)``.
    """
    out, reduction = problem.outputs, Reduction.of_planes(problem)
    share = 1 / reduction.terms
    run = plan_reduction(problem["x"], reduction, tile, usual=share)

    def call(x: Tensor) -> Tensor:
        mean = out.empty()
        run(x, mean, share)
        return mean

    return call


def branch(problem: Problem) -> bool:
    """Return whether blocks share outputs."""
    return shares(problem["x"], Reduction.of_planes(problem))


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    itemsize = problem["x"].element_size()
    yield from candidates(Walk.of(Reduction.of_planes(problem)).widest(itemsize), itemsize)
