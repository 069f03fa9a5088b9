"""global_max_pool2d_with_offsets: the kernels of global_max_pool2d, which keep each best's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from nxcore.plugin import Problem
from nxcore_cuda.global_max_pool2d import plan_both, sweep, usual
from nxcore_cuda.instance import Instance
from nxcore_cuda.sum import Tile

__all__ = ["instances", "plan", "sweep"]


def plan(problem: Problem, tile: Tile | None = None) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x)``.
    """
    (out, offsets), run = problem.outputs, plan_both(problem, tile, offsets=True)

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        results = out.empty(), offsets.empty()
        run(x, *results)
        return results

    return call


def instances() -> Iterator[Instance]:
    """Yield what ordinary calls want."""
    yield from usual(offsets=True)
