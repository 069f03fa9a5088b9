"""sum, mean, sum_to_size and global_avg_pool2d on the CPU: one reduction, and a factor."""

from collections.abc import Callable
from typing import Any

from nxcore.plugin import Problem, Reduction
from nxcore_numba import reduce


def plan(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    out, (reduction, factor) = problem.outputs, Reduction.scaled(problem)
    kernel = reduce.compiled(problem["x"], reduction)

    def call(x: Any, *_: Any) -> Any:
        result = out.empty()
        kernel(result.data_ptr(), x.data_ptr(), factor)
        return result

    return call
