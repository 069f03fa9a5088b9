"""global_max_pool2d_with_offsets: the kernel of global_max_pool2d, which also writes the maxima's places."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nxcore.plugin import Problem
from nxcore_triton.global_max_pool2d import Blocks, plan_both, sweep

__all__ = ["plan", "sweep"]


def plan(problem: Problem, tile: Blocks | None = None) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x)``.
    """
    out, offsets = problem.outputs
    run = plan_both(problem, tile, places=True)

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        results = out.empty(), offsets.empty()
        run(x, *results)
        return results

    return call
