"""Batches from host memory, copied to a GPU while it computes on earlier batches."""

from collections import deque
from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from nxcore.nas.data import Split, batches, orders

SLOTS = 3


class Feed:
    """Batches on ``device``: gathered there, or copied from ``at``, where the images are.

    ``generator``, on ``device``, draws the order. Images on another device get their own, with ``seed``.
    """

    def __init__(self, at: torch.device, device: torch.device, generator: torch.Generator, seed: int) -> None:
        self.device, self.apart = device, at.type != device.type
        self.generator = torch.Generator(at).manual_seed(seed) if self.apart else generator

    def batches(self, part: Split, size: int, *, rank: int, world: int) -> Iterator[Split]:
        """Yield a split's images in batches: see ``nxcore.nas.data.orders``."""
        if self.apart and self.device.type == "cuda":
            order = orders(part, size, self.generator, rank=rank, world=world)
            return Ring(part, self.device).batches(order)
        return batches(part, size, self.generator, rank=rank, world=world)


class Slot(NamedTuple):
    """Pinned memory for one batch, and the event after its last copy to the device."""

    images: Tensor
    labels: Tensor
    left: torch.cuda.Event


class Ring:
    """A ring of pinned buffers, copied on a stream of its own.

    A copy from memory that is not pinned waits for the device. A buffer is filled again only after its last
    copy is done, and a batch's memory is reused only after the consumer's stream is done with it.
    """

    def __init__(self, part: Split, device: torch.device, slots: int = SLOTS) -> None:
        self.part, self.device, self.slots = part, device, slots
        self.stream = torch.cuda.Stream(device)

    def batches(self, orders: Iterator[Tensor]) -> Iterator[Split]:
        """Yield the batches of these indices, which are on the CPU, ready for use on the current stream."""
        ring: cycle[Slot] | None = None
        under_way: deque[tuple[Split, torch.cuda.Event]] = deque()
        for places in orders:
            ring = ring or cycle([self._slot(len(places)) for _ in range(self.slots)])
            under_way.append(self._sent(next(ring), places))
            if len(under_way) == self.slots:
                yield self._received(*under_way.popleft())
        while under_way:
            yield self._received(*under_way.popleft())

    def _slot(self, size: int) -> Slot:
        images, labels = (t.new_empty((size, *t.shape[1:])).pin_memory() for t in self.part)
        return Slot(images, labels, torch.cuda.Event())

    def _sent(self, slot: Slot, places: Tensor) -> tuple[Split, torch.cuda.Event]:
        slot.left.synchronize()
        for source, pinned in zip(self.part, slot[:2], strict=True):
            torch.index_select(source, 0, places, out=pinned)
        with torch.cuda.stream(self.stream):
            batch = Split(*(pinned.to(self.device, non_blocking=True) for pinned in slot[:2]))
            slot.left.record(self.stream)
        there = torch.cuda.Event()
        there.record(self.stream)
        return batch, there

    def _received(self, batch: Split, there: torch.cuda.Event) -> Split:
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(there)
        for tensor in batch:
            tensor.record_stream(stream)
        return batch
