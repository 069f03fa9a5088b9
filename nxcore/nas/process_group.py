"""A search on several ranks: what torchrun started, or any process group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn


def place() -> tuple[int, int]:
    """Return rank and world size; 0 and 1 where there is no process group."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def total(value: Tensor) -> Tensor:
    """Return the sum over all ranks of a tensor that is changed by it."""
    if place()[1] > 1:
        distributed.all_reduce(value)
    return value


def mean(value: Tensor) -> Tensor:
    """Return the mean over all ranks of a tensor that is changed by it; a gradient of the joined batch.

    Batch norms in training take each rank's statistics by itself, as ``DistributedDataParallel`` has it.
    """
    return total(value) / place()[1]


def means(gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the means over all ranks of many gradients of one dtype, in one message; None stays."""
    if place()[1] == 1:
        return gradients
    known = [g for g in gradients if g is not None]
    flat = mean(torch.cat([g.flatten() for g in known]))
    parts = iter(flat.split([g.numel() for g in known]))
    return [g if g is None else next(parts).view_as(g) for g in gradients]


def shared(net: nn.Module, *, unused: bool) -> nn.Module:
    """Return the network so that a backward pass of its call leaves the ranks' mean gradients.

    Parameters
    ----------
    net : Module
    unused : bool
        Some of its parameters may have no part in a call.
    """
    if place()[1] == 1:
        return net
    device = next(net.parameters()).device
    return nn.parallel.DistributedDataParallel(
        net, [device] if device.type == "cuda" else None, find_unused_parameters=unused
    )


def as_first(net: nn.Module) -> None:
    """Give every rank the first one's buffers: running statistics are each rank's own in training."""
    if place()[1] > 1:
        for buffer in net.buffers():
            distributed.broadcast(buffer, 0)
