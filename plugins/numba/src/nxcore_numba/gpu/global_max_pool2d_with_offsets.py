"""global_max_pool2d_with_offsets on CUDA: global_max_pool2d, which numbers its pixels."""

from nxcore_numba.gpu.global_max_pool2d import ASKED, compiled


def plan(problem):
    """Return a callable for calls like ``problem``."""
    (out, offsets), kernel = problem.outputs, compiled(problem, asked=ASKED)

    def call(x):
        result, taps = out.empty(), offsets.empty()
        kernel(result, taps, x)
        return result, taps

    return call
