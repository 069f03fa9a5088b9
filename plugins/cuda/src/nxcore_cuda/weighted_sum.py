"""weighted_sum: the kernels of softmax_sum, which take the weights as they are."""

from __future__ import annotations

from nxcore_cuda.softmax_sum import instances, plan, sweep

__all__ = ["instances", "plan", "sweep"]
