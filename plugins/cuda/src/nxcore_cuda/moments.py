"""Partial sums of each channel, which blocks write; the layout is that of moments.cuh."""

from __future__ import annotations

import torch

from nxcore.plugin import TensorMeta

MOMENTS = 4  # count, mean, squared deviations, nothing


def shares_of(channels: int, blocks: int, device: torch.device) -> TensorMeta:
    """Describe what ``blocks`` leave of each channel."""
    return TensorMeta((channels, blocks, MOMENTS), (blocks * MOMENTS, MOMENTS, 1), torch.float32, device)
