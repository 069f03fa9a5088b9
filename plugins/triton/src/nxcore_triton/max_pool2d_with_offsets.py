"""max_pool2d_with_offsets: the kernel of max_pool2d, which also writes the number of each maximum's tap."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nxcore.plugin import Problem
from nxcore_triton.max_pool2d import plan_both, sweep
from nxcore_triton.strips import Tile

__all__ = ["plan", "sweep"]


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x, kernel_size, stride, padding, dilation, ceil_mode)``.
    """
    return plan_both(problem, "tap", tile)
