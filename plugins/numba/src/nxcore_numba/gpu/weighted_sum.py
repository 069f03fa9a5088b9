"""weighted_sum on CUDA: what softmax_sum does, with the weights as they are given."""

from nxcore_numba.gpu.softmax_sum import plan

__all__ = ["plan"]
