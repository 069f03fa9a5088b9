"""weighted_sum_backward: the kernels of softmax_sum_backward, which take the weights as they are."""

from __future__ import annotations

from nxcore_triton.softmax_sum_backward import plan

__all__ = ["plan"]
