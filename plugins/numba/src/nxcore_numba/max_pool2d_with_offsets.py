"""max_pool2d_with_offsets on the CPU: max_pool2d, which numbers its taps where that is asked for."""

from nxcore_numba.max_pool2d import plan_numbered as plan

__all__ = ["plan"]
