"""sep_conv2d_with_stats on CUDA: the kernels of sep_conv2d; the statistics are work of torch."""

from nxcore.ops.sep_conv2d_with_stats import planned
from nxcore_numba.gpu import sep_conv2d


def plan(problem):
    """Return a callable for calls like ``problem``."""
    return planned(problem, sep_conv2d.plan)
