"""sep_conv2d_batch_norm_backward on CUDA: the kernels of both gradients, one after the other."""

from nxcore.ops.sep_conv2d_batch_norm_backward import planned
from nxcore_numba.gpu import batch_norm_backward, sep_conv2d_backward


def plan(problem):
    """Return a callable for calls like ``problem``."""
    return planned(problem, batch_norm_backward.plan, sep_conv2d_backward.plan)
