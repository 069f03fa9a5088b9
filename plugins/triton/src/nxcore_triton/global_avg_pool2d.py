"""global_avg_pool2d: one reduction by the kernel of sum, and a factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from nxcore.plugin import Problem, Reduction
from nxcore_triton.sum import Blocks, plan_reduction, variations


def plan(problem: Problem, tile: Blocks | None = None) -> Callable[[Tensor], Tensor]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(x)``.
    """
    out, reduction = problem.outputs, Reduction.of_planes(problem)
    share = 1 / reduction.terms
    run = plan_reduction(reduction, problem.device, scaled=True, blocks=tile)

    def call(x: Tensor) -> Tensor:
        mean = out.empty()
        run(x, mean, share)
        return mean

    return call


def sweep(problem: Problem) -> Iterator[Blocks]:
    """Yield the blocks worth timing."""
    yield from variations(Reduction.of_planes(problem))
