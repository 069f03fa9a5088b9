"""Memory: one pool for all recordings of a model, and which of them may use it."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from nxcore.graphs.recorder import Pool, Ticket

ROOM = 2.0
"""The free memory that a recording needs, relative to what a step has allocated beside what stays."""


class Memory:
    """The memory of one model's recordings, of all signatures.

    Each of them overwrites what another one has saved. So while a backward pass of one is still to come, no
    forward graph of the memory is replayed.

    Attributes
    ----------
    pool : Pool
        Where the graphs lie.
    bytes : int
        The bytes of the device that the recordings have taken.
    calls : int
        The calls of all signatures.
    """

    def __init__(self) -> None:
        self.pool, self.bytes, self.calls = Pool(), 0, 0
        self._last: weakref.ref[Ticket] | None = None

    @property
    def free(self) -> bool:
        """Whether no backward pass of a replay is still to come."""
        ticket = None if self._last is None else self._last()
        return ticket is None or not ticket.open

    def enter(self) -> Ticket:
        """Return the ticket of a replay, open until its backward pass is over or impossible."""
        ticket = Ticket(0)
        self._last = weakref.ref(ticket)
        return ticket


_memories: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def memory_of(tensor: Tensor | None) -> Memory:
    """Return the memory of the model whose first parameter is ``tensor``; new memory for None."""
    if tensor is None:
        return Memory()
    found: Memory = _memories.setdefault(tensor, Memory())
    return found


def kept(device: torch.device) -> int:
    """Return the bytes that torch keeps of a device, after it has returned those that nothing uses.

    What runs beside a capture took belongs to a stream that no step uses.
    """
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def roomy(device: torch.device) -> bool:
    """Return whether a device has the memory for a recording beside a run of it."""
    if device.type != "cuda":
        return True
    step = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] >= ROOM * step


def spare(device: torch.device, count: int) -> bool:
    """Return whether a device has so many bytes that nothing uses."""
    if device.type != "cuda":
        return True
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused - count >= count  # the recordings' own aren't free


def leave(device: torch.device) -> None:
    """Return the memory of graphs that are gone."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
