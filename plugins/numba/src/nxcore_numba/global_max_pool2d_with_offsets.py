"""global_max_pool2d_with_offsets on the CPU: global_max_pool2d, which numbers its pixels."""

from nxcore_numba.global_max_pool2d import compiled


def plan(problem):
    """Return a callable for calls like ``problem``."""
    (out, offsets), kernel = problem.outputs, compiled(problem)

    def call(x):
        result, taps = out.empty(), offsets.empty()
        kernel(result.data_ptr(), taps.data_ptr(), x.data_ptr())
        return result, taps

    return call
