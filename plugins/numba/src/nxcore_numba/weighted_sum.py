"""weighted_sum on the CPU: what softmax_sum does, with the weights as they are given."""

from nxcore_numba.softmax_sum import plan

__all__ = ["plan"]
