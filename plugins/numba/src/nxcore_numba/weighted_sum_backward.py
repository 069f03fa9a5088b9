"""weighted_sum_backward on the CPU: what softmax_sum_backward does, with the weights as they are given."""

from nxcore_numba.softmax_sum_backward import plan

__all__ = ["plan"]
