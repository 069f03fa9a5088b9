"""weighted_sum_backward on CUDA: what softmax_sum_backward does, with the weights as they are given."""

from nxcore_numba.gpu.softmax_sum_backward import plan

__all__ = ["plan"]
