"""sep_conv2d_batch_norm on CUDA: the kernels of sep_conv2d, then those of batch_norm."""

from nxcore.ops.sep_conv2d_batch_norm import planned
from nxcore_numba.gpu import batch_norm, sep_conv2d


def plan(problem):
    """Return a callable for calls like ``problem``."""
    return planned(problem, sep_conv2d.plan, batch_norm.plan)
