"""sum on CUDA."""

from nxcore.plugin import Reduction
from nxcore_numba.gpu import reduce


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out = problem.outputs
    kernel = reduce.compiled(problem["x"], Reduction.of_sum(problem))

    def call(x, dim, keepdim):  # noqa: ARG001  both are part of the plan
        result = out.empty()
        kernel(result, x, 1.0)
        return result

    return call
