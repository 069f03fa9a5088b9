"""A search on several ranks, started by torchrun or in any process group."""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn


def place() -> tuple[int, int]:
    """Return rank and world size; 0 and 1 without a process group."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def total(value: Tensor) -> Tensor:
    """Return the sum of ``value`` over all ranks, computed in place."""
    if place()[1] > 1:
        distributed.all_reduce(value)
    return value


def mean(value: Tensor) -> Tensor:
    """Return the mean of ``value`` over all ranks; of gradients, that of the joined batch. Changes ``value``.

    Batch norms in training use each rank's own statistics, as in ``DistributedDataParallel``.
    """
    return total(value) / place()[1]


def joined(gradients: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    """Return this rank's part of the mean gradients as one tensor, and the gradients as views of it.

    ``total`` of the tensor makes all of them means over the ranks, by one message. None stays None.
    """
    known = [g for g in gradients if g is not None]
    flat = torch.cat([g.flatten() for g in known]).div_(place()[1])
    parts = iter(flat.split([g.numel() for g in known]))
    return flat, [None if g is None else next(parts).view_as(g) for g in gradients]


def agreed(seconds: float, device: torch.device) -> float:
    """Return the mean over all ranks, so that they stop together."""
    return seconds if place()[1] == 1 else mean(torch.tensor(seconds, device=device)).item()


def shared(net: nn.Module, *, unused: bool) -> nn.Module:
    """Return a network whose backward pass leaves the mean gradients of all ranks.

    ``unused`` says whether some parameters may be unused in a call.
    """
    if place()[1] == 1:
        return net
    device = next(net.parameters()).device
    return nn.parallel.DistributedDataParallel(
        net, [device] if device.type == "cuda" else None, find_unused_parameters=unused
    )


def as_first(net: nn.Module) -> None:
    """Copy the first rank's buffers to all ranks: running statistics differ between ranks in training."""
    if place()[1] > 1:
        for buffer in net.buffers():
            distributed.broadcast(buffer, 0)
