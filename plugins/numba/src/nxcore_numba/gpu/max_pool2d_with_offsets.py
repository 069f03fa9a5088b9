"""max_pool2d_with_offsets on CUDA: max_pool2d, which writes its taps' numbers where that is asked for."""

from nxcore_numba.gpu.max_pool2d import OFFSETS, plan_numbered


def plan(problem):
    """Return a callable for calls like ``problem``."""
    return plan_numbered(problem, OFFSETS)
