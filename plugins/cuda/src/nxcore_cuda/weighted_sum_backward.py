"""weighted_sum_backward: the kernels of softmax_sum_backward, which take the weights as they are."""

from __future__ import annotations

from nxcore_cuda.softmax_sum_backward import instances, plan, sweep

__all__ = ["instances", "plan", "sweep"]
