"""weighted_sum: the kernel of softmax_sum, which takes the weights as they are."""

from __future__ import annotations

from nxcore_triton.softmax_sum import plan

__all__ = ["plan"]
