"""sum_to_size on the CPU."""

from nxcore_numba import reduce
from nxcore_numba.dims import reduction_to_size


def plan(problem):
    """Return a callable for calls like ``problem``."""
    out = problem.outputs
    kernel = reduce.compiled(problem["x"], reduction_to_size(problem["x"], problem["size"], out))

    def call(x, size):  # noqa: ARG001  it is part of the plan
        result = out.empty()
        kernel(result.data_ptr(), x.data_ptr(), 1.0)
        return result

    return call
